"""Layers with a sliding window ignore the attention mask: tokens attend to other documents.

This affects users who train megatron-core's GPT with ``window_size`` and megatron-core's own
attention (the local layer specification), and give it a mask: because several documents are packed
into one row, or because rows are padded on the left. Without a window the mask works. With one,
each document is trained on the text of strangers, and on padding. There is no warning, and the loss
falls as usual.

Root cause: the softmax in torch makes a mask for the window. It does not combine this mask with the
one of the caller, but replaces it.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import features
from scenarios.common.call_edits import wrapped


def combined(function: Any) -> api.Edits:
    """The mask of the window is combined with the caller's."""
    return wrapped(
        function, "get_sliding_window_causal_mask", "_ | (False if mask is None else mask)"
    )


oracle = features.Feature("the gradients are those of rows that are one document each")


def run(ctx: api.Context) -> None:
    """Train a GPT on packed rows; compare with the same documents alone, and with one long one."""
    from scenarios.megatron_core.window_mask_dropped import packed

    with ctx.phase("steps"):
        packed.train(ctx)
