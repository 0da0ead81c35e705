"""Since transformers 5.15.0, an explicit zero.Init rounds LLaMA's rotary frequencies to bf16.

A model built inside ``with deepspeed.zero.Init()``, as DeepSpeed's own manual shows it, has 63 of
64 frequencies in bf16. Every position but the first is turned by a wrong angle, and far out in the
context the cosines are arbitrary: wrong by up to 2.0. As in ``rope_zero_init`` nothing shows it: no
checkpoint contains the buffers, the parameters are right, and all ranks are wrong in the same way.
Models that transformers builds itself, from a DeepSpeed config, are right in 5.23.0; in 5.15.0 and
5.22.2 they are wrong, too.

Root cause: the fix of ``rope_zero_init`` in 2024, pull request 28760, made ``torch.arange`` count
in integers, which ``zero.Init`` leaves alone. transformers 5.15.0 asks for a float arange again. So
arange returns bf16, and the frequencies are computed in bf16. 5.23.0 switches off the cast of
``arange``, but only where transformers enters ``zero.Init`` itself, not where the user enters it.

``rope_zero_init`` is about the first defect, in releases up to 4.37, which rounds positions. This
scenario is about its return in other code, which rounds frequencies. No later release has a fix at
the time of writing, so the fixed variant is an older one: 5.12.1, which still counts in integers.
The bug is in transformers, but it needs DeepSpeed: a DeepSpeed release can be affected by it
together with an affected transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from harness.bugs import api
from scenarios.transformers import _rope_buffers as buffers
from scenarios.transformers._rope_buffers import Documented, Figures

FREQUENCIES = ("model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq")

ROUNDED = Figures(63, dtype="torch.bfloat16")
DOCUMENTED = Documented(
    first=1,  # the first position that is not turned by the angle 0
    figures={
        api.Lane.CPU: {("bf16", "inv_freq"): ROUNDED, ("bf16", "cos"): Figures(396216)},
        api.Lane.GPU: {("bf16", "inv_freq"): ROUNDED},
    },
)
"""Mismatched elements, of 64 and of 4096 * 128; ``cos`` is in bf16, as the layers get it."""


def plan(at: api.Position) -> api.Plan:
    """The buffers and the logits in bf16."""
    return buffers.plan(at, "bf16", **buffers.TURNED)


def run(ctx: api.Context) -> None:
    """Build the model; compare its frequencies, cosines and logits with a reference."""
    from scenarios.transformers import _rope_models as rope

    with ctx.phase("init"):
        rope.init_distributed(ctx)
    with ctx.phase("buffers"):
        model, casts = rope.built("bf16", _contexts(ctx))
        turned, off = _turned(model, ctx.device)
        rope.compare_buffers(ctx, model, "bf16", casts, turned=turned, turned_off=off)
    with ctx.phase("logits"):
        rope.compare_logits(ctx, model, ctx.params.tokens)


def _turned(model: Any, device: Any) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """How the cosines and sines of transformers 5 differ, at every position, from those of
    ``tiny``; and how far the latter are from plain torch's."""
    import torch

    from harness.detectors.buffers import difference
    from scenarios.transformers import _plain_llama as plain_llama
    from scenarios.transformers import _rope_models as rope

    answers = []
    for llama, where in ((model, device), (rope.tiny("bf16"), torch.device("cpu"))):
        positions = torch.arange(llama.config.max_position_embeddings, device=where)[None]
        like = torch.empty(0, dtype=torch.bfloat16, device=where)
        answers.append([t[0] for t in llama.model.rotary_emb(like, positions)])
    tables = list(zip(("cos", "sin"), *answers, strict=True))
    differences = [difference(name, ours, theirs) for name, ours, theirs in tables]
    expected = [(name, theirs) for name, _, theirs in tables]
    off = plain_llama.buffers_off(expected, rope.Shape.positions)
    return buffers.facts(found for found in differences if found is not None), off


def _contexts(ctx: api.Context) -> Iterator[AbstractContextManager[Any]]:
    """The contexts in which the model is built, outermost first."""
    from scenarios.transformers import _rope_models as rope

    if ctx.params.guard:
        from transformers.integrations.deepspeed import prevent_arange_dtype_change  # type: ignore[import-not-found]

        yield prevent_arange_dtype_change()
    if ctx.params.zero_init:
        yield rope.zero_init("bf16")


def detect(records: api.Records) -> api.Finding | None:
    """63 of 64 frequencies differ from the reference's, and so do the cosines and logits."""
    return buffers.unlike_reference(records, DOCUMENTED)


def exercised(records: api.Records) -> api.Exercise:
    """zero.Init was active while the model was built, and the release keeps frequencies. The
    evidence for zero.Init is the dtype of ones, because a release may guard arange."""
    compared = {name for record in records.of("buffers") for name in record["compared"]}
    missing = sorted(set(FREQUENCIES) - compared)
    return (
        buffers.under_zero_init(records, "ones")
        & api.Exercise.needs(not missing, f"the model has no {', '.join(missing)}")
        & buffers.compared_beyond(records, 1)
    )


picture = buffers.by_position
insufficient_checks = buffers.weights_differ
