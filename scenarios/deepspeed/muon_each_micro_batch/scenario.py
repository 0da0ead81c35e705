"""At ZeRO stage 3, Muon makes an update of each micro-batch, and applies the sum of them.

This affected users who train with DeepSpeed's Muon at stage 3 and accumulate gradients. Muon's
update has singular values near 1, whatever the size of the gradient. With 4 micro-batches 4 such
matrices are added up, so the update is about 4 times too large; it has another direction, too, and
the momentum moves 4 times in a step. At stages 1 and 2, and without accumulation, it is right.
There is no warning.

Root cause: stage 3 calls Muon where it reduces gradients, which happens in each micro-batch. Stages
1 and 2 call it at the boundary of the accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.deepspeed import _muon as muon


@dataclass
class Params(api.Knobs):
    zero_stage: int = api.knob(3, choices=(1, 2, 3), about="of ZeRO")
    micro_batches: int = api.knob(4, choices=(1, 2, 4), about="gradient_accumulation_steps")
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of Muon")


SCENARIO = api.Scenario(
    report=(
        "ZeRO-3 applies Muon's Newton-Schulz once per micro-batch, so gradient accumulation "
        "changes the optimizer",
        "https://github.com/deepspeedai/DeepSpeed/issues/8443",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/8600",
    symptom="at ZeRO stage 3 the orthogonalization runs once in each micro-batch, on partial "
    "gradients, and the momentum moves as often",
    trigger="Muon at ZeRO stage 3, and gradient_accumulation_steps above 1",
    remedy="use ZeRO stage 2, or larger micro-batches instead of accumulation",
    pins={"deepspeed": "0.19.3"},
    named_by=("reference: OPT.10",),
    harm="ruins training",
    visibility="silent",
    settings={
        "zero_stage": 3,
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("DeepSpeed's configuration names Muon"),
    },
    seen={"deepspeed.runtime.zero.muon.muon_optimizer.MuonWithAuxAdam": api.NEEDED},
    files=("deepspeed/runtime/zero/stage3.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.19.8"),
        "control": api.control("0.19.3 without accumulation", params={"micro_batches": 1}),
        "stage_2": api.control("0.19.3 at ZeRO stage 2", params={"zero_stage": 2}),
    },
)


def summed(step: api.Record) -> bool:
    """Each update is the sum of the updates that Muon makes of each micro-batch."""
    return bool(step["each"] < muon.NEAR)


oracle = muon.Updates(summed, "that follows if an update is made of each micro-batch")


def run(ctx: api.Context) -> None:
    """Train with Muon; compare each update with Muon's, and with the sum of those of each
    micro-batch."""
    from scenarios.deepspeed import _muon_steps as steps

    steps.train(ctx, ctx.params.zero_stage, ctx.params.micro_batches)


def exercised(records: api.Records) -> api.Exercise:
    """ZeRO was at stage 3, and gradients were accumulated."""
    p = records.params
    text = f"{p.micro_batches} micro-batches in a step, at stage {p.zero_stage}"
    return api.Exercise.of(p.zero_stage == 3 and p.micro_batches > 1, text)
