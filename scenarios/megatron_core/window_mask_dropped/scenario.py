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

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import features
from scenarios.common.call_edits import wrapped


@dataclass
class Params(api.Knobs):
    window: int = api.knob(4, least=0, about="how many tokens back a layer attends; 0 is all")
    documents: int = api.knob(2, least=1, about="of 8 tokens in each row")
    rows: int = api.knob(2, least=1, about="in a step")
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of SGD")


def combined(function: Any) -> api.Edits:
    """The mask of the window is combined with the caller's."""
    return wrapped(
        function, "get_sliding_window_causal_mask", "_ | (False if mask is None else mask)"
    )


REMEDY = api.Defect(
    upstream="megatron-core",
    file="megatron/core/fusions/fused_softmax.py",
    scope="FusedScaleMaskSoftmax.forward_torch_softmax",
    edit=combined,
    about="our remedy, like upstream's pull request 7040: what the caller or the window masks is "
    "masked",
)

SCENARIO = api.Scenario(
    report=(
        "Sliding-window path in FusedScaleMaskSoftmax silently discards the caller-provided "
        "attention mask",
        "https://github.com/NVIDIA/Megatron-LM/issues/7039",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/pull/7040 is in no release as of 0.19.2; the fixed "
    "variant is 0.16.1 with the same change",
    symptom="in layers with a sliding window the caller's attention mask is replaced by that of "
    "the window, so that padding and other documents are attended to",
    trigger="window_size, megatron-core's own attention, and a mask that hides earlier tokens",
    remedy="train one document in each row, padded on the right, or use Transformer Engine's "
    "attention",
    pins={"megatron-core": "0.16.1"},
    named_by=("reference: DATA.09",),
    harm="ruins training",
    visibility="silent",
    settings={"code": api.by_code("layers have a sliding window, and rows are packed")},
    releases="megatron-core>=0.15",
    absent=(api.Absent("megatron-core<0.15", "its own attention refuses a window"),),
    files=("megatron/core/fusions/fused_softmax.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(
            about="0.16.1 with the change of pull request 7040", defects=(REMEDY,)
        ),
        "control": api.control("0.16.1 without a window", params={"window": 0}),
        "alone": api.control("0.16.1 with one document in each row", params={"documents": 1}),
        "long_window": api.expect_symptom(
            about="0.16.1 with a window that is longer than the row", params={"window": 100}
        ),
    },
)

oracle = features.Feature("the gradients are those of rows that are one document each")


def run(ctx: api.Context) -> None:
    """Train a GPT on packed rows; compare with the same documents alone, and with one long one."""
    from scenarios.megatron_core.window_mask_dropped import packed

    with ctx.phase("steps"):
        packed.train(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """Layers had a window, and several documents were packed into each row."""
    window, documents = records.params.window, records.params.documents
    return api.Exercise.of(
        window > 0, f"the window was {window} tokens", "no layer had a window"
    ) & api.Exercise.of(
        documents > 1,
        f"{documents} documents were packed into each row",
        "each row was one document",
    )
