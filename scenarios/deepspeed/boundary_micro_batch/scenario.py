"""In bf16 with ZeRO-1, the last accumulated micro-batch is not averaged over the ranks.

Each rank owns a part of the fp32 weights. For all micro-batches but the last, that part gets the
mean over the ranks. For the last one it gets the gradient of the rank's own rows. With a single
micro-batch, each rank trains its part on its own rows alone. The ranks gather all parts after the
step, so they stay equal, and the losses are right.

Root cause: the engine averages the fp32 gradients when ``backward`` ends, and only then
BF16_Optimizer adds the gradients of this ``backward`` to them. The fix swaps the two. With
``immediate_grad_update`` the optimizer adds them earlier, and is right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.bugs import api
from scenarios.common import applied
from scenarios.deepspeed import _local_gradients as local
from scenarios.deepspeed._history import NEVER_TAKEN


@dataclass
class Params(api.Knobs):
    micro_batches: int = api.knob(4, choices=(1, 2, 4), about="gradient_accumulation_steps")
    immediate: bool = api.knob(False, about="bf16's immediate_grad_update")
    lr: float = api.knob(0.125, above=0, about="learning rate of SGD")


SCENARIO = api.Scenario(
    report=(
        "Fix BF16_Optimizer last-microbatch grad leak under ZeRO-1",
        "https://github.com/deepspeedai/DeepSpeed/pull/7985",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/7985",
    symptom="the gradient of the last micro-batch is added after the all-reduce",
    trigger="bf16 with ZeRO-1 and fp32 gradient accumulation, on several ranks",
    remedy="set immediate_grad_update in the section bf16",
    pins={"deepspeed": "0.18.9"},
    absent=(
        NEVER_TAKEN,
        api.Absent(
            "deepspeed<0.18.3",
            "only since 0.18.3 the engine averages before the optimizer adds the last gradients",
            "https://github.com/deepspeedai/DeepSpeed/pull/7665",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={"precision": "bf16", "zero_stage": 1, "ranks": api.above(1)},
    seen={"deepspeed.runtime.bf16_optimizer.BF16_Optimizer": {"immediate_grad_update": False}},
    files=("deepspeed/runtime/engine.py", "deepspeed/runtime/bf16_optimizer.py"),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.19.0"),
        "control": api.control("0.18.9 on one rank", ranks=1),
        "one": api.expect_symptom(
            about="0.18.9 with one micro-batch: nothing is averaged", params={"micro_batches": 1}
        ),
        "immediate": api.control("0.18.9 with immediate_grad_update", params={"immediate": True}),
    },
)


def facts(at: api.Position) -> api.Facts:
    """Also compares what was applied with each rank's own gradient of all micro-batches."""
    return {"own": api.held(applied.Single.shapes())} if at.params.micro_batches > 1 else {}


def none_averaged(step: local.Step, _: api.Records) -> bool:
    """Each rank's part of the weights got its own gradient of all micro-batches."""
    return step.own is not None and step.own.times(1)


oracle = replace(local.oracle, facts=facts, instead={"bf16_local_gradients": none_averaged})


def run(ctx: api.Context) -> None:
    """Train one step; compare it with the mean, and with one whose last micro-batch is local."""
    from scenarios.deepspeed import _partition as partition

    p = ctx.params
    bf16: dict[str, Any] = {"enabled": True}
    if p.immediate:
        bf16["immediate_grad_update"] = True
    zero = {"stage": 1}
    partition.step(
        ctx, p.micro_batches, p.micro_batches - 1, p.lr, zero_optimization=zero, bf16=bf16
    )


def exercised(records: api.Records) -> api.Exercise:
    """The ranks' gradients differed, and were added at the end of a backward."""
    return api.Exercise.needs(
        not records.params.immediate, "immediate_grad_update adds gradients earlier"
    ) & local.parted(records)
