"""On a CPU, ZeRO without contiguous gradients never averages: each rank trains with its own rows.

This affected users who train, or test, on CPUs at ZeRO stage 1 or 2 with
``contiguous_gradients: false``. Each rank updates its part of the weights with the gradient of its
own rows alone, so with 2 ranks every weight learns from half of the data. After the step the ranks
gather all parts, so the replicas stay equal, and comparing them shows nothing. On a GPU the same
configuration is right.

Root cause: the gradients are sorted by their type into buckets, and the buckets are averaged. The
types that are looked for are named after the device, ``torch.cpu.FloatTensor``. That of a gradient
on a CPU is ``torch.FloatTensor``, so it comes into no bucket, and nobody averages it.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.deepspeed import _local_gradients as local


@dataclass
class Params(api.Knobs):
    contiguous: bool = api.knob(False, about="contiguous_gradients")
    micro_batches: int = api.knob(1, choices=(1, 2, 4), about="gradient_accumulation_steps")
    zero_stage: int = api.knob(2, choices=(1, 2), about="of ZeRO")
    lr: float = api.knob(0.125, above=0, about="learning rate of SGD")


SCENARIO = api.Scenario(
    report=(
        "On a CPU, ZeRO 1 and 2 with contiguous_gradients=false do not average the gradients",
        "https://github.com/deepspeedai/DeepSpeed/pull/8382",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/8382",
    symptom="gradients on a CPU come into no bucket of split_half_float_double, and are never "
    "reduced",
    trigger="a CPU, several ranks, ZeRO stage 1 or 2, and contiguous_gradients false",
    remedy="set contiguous_gradients to true, the default",
    pins={"deepspeed": "0.19.3"},
    named_by=("reference: PAR.09",),
    harm="ruins training",
    visibility="silent",
    settings={
        "zero_stage": (1, 2),
        "ranks": api.above(1),
        "code": api.by_code("it runs on a CPU, and contiguous_gradients is false"),
    },
    files=("deepspeed/runtime/zero/stage_1_and_2.py",),
    lanes=(api.Lane.CPU,),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.19.8"),
        "control": api.control(
            "0.19.3 with contiguous gradients, the default", params={"contiguous": True}
        ),
        "alone": api.control("0.19.3 on one rank", ranks=1),
        "stage_1": api.expect_symptom(about="0.19.3 with ZeRO stage 1", params={"zero_stage": 1}),
    },
)
oracle = local.oracle


def run(ctx: api.Context) -> None:
    """Train one step; compare it with the mean over the ranks, and with each rank's own."""
    from scenarios.deepspeed import _partition as partition

    p = ctx.params
    partition.step(
        ctx,
        p.micro_batches,
        0,
        p.lr,
        "DeepSpeedZeroOptimizer",
        bf16={"enabled": False},
        zero_optimization={"stage": p.zero_stage, "contiguous_gradients": p.contiguous},
    )


def exercised(records: api.Records) -> api.Exercise:
    """Gradients were not contiguous, and those of several ranks differed."""
    contiguous = records.params.contiguous
    return api.Exercise.of(
        not contiguous, "gradients were not contiguous", "gradients were contiguous"
    ) & local.parted(records)
