"""Without ZeRO, DeepSpeed's Muon is plain SGD: it adds the raw gradient, without momentum.

This affected users whose configuration names the optimizer Muon, and no stage of ZeRO, or stage 0,
which is the default. Each weight moves by the rate times its gradient. Muon would have added the
orthogonal matrix that is nearest to the gradient with momentum, whose size does not depend on the
gradient's. So the rate that suits Muon does not suit what runs. There is no warning, and the loss
falls.

Root cause: Muon's step takes the gradient for an update that is already orthogonal. ZeRO makes it
so before it calls the step, as its flat partitions have no matrices any more. Without ZeRO nobody
does.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.deepspeed import _muon as muon


@dataclass
class Params(api.Knobs):
    zero_stage: int = api.knob(0, choices=(0, 1, 2, 3), about="of ZeRO")
    micro_batches: int = api.knob(1, choices=(1, 2, 4), about="gradient_accumulation_steps")
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of Muon")


SCENARIO = api.Scenario(
    report=(
        "Muon runs no Newton-Schulz at ZeRO stage 0, which is the default: the plainest Muon "
        "config trains with SGD",
        "https://github.com/deepspeedai/DeepSpeed/issues/8441",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/8442",
    symptom="at ZeRO stage 0 the weights are those of SGD, w - lr * grad: Newton-Schulz never runs",
    trigger="the optimizer Muon of DeepSpeed's configuration, at ZeRO stage 0",
    remedy="set ZeRO stage 1",
    pins={"deepspeed": "0.19.3"},
    named_by=("reference: OPT.11",),
    harm="ruins training",
    visibility="silent",
    settings={"zero_stage": 0, "code": api.by_code("DeepSpeed's configuration names Muon")},
    seen={"deepspeed.runtime.zero.muon.muon_optimizer.MuonWithAuxAdam": api.NEEDED},
    files=("deepspeed/runtime/zero/muon/muon_optimizer.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.19.8"),
        "control": api.control("0.19.3 at ZeRO stage 1", params={"zero_stage": 1}),
        "stage_3": api.control("0.19.3 at ZeRO stage 3", params={"zero_stage": 3}),
    },
)


def plain(step: api.Record) -> bool:
    """Each update is the mean gradient times the rate, as that of SGD."""
    return bool(step["sgd"] < 1e-4)


oracle = muon.Updates(plain, "exactly that follows if the raw gradient is the update")


def run(ctx: api.Context) -> None:
    """Train with Muon; compare each update with Muon's, and with SGD's."""
    from scenarios.deepspeed import _muon_steps as steps

    steps.train(ctx, ctx.params.zero_stage, ctx.params.micro_batches)


def exercised(records: api.Records) -> api.Exercise:
    """There was no ZeRO."""
    stage = records.params.zero_stage
    return api.Exercise.of(stage == 0, f"ZeRO was at stage {stage}")
