"""In bf16, each rank updates its part of the weights with its own gradient, not with the mean.

BF16_Optimizer gives each rank a part of the fp32 weights. A rank updates its part with the gradient
of its own rows alone, so with 2 ranks every weight learns from half of the data, with 64 ranks from
1/64. After the step the ranks gather all parts, so the replicas stay equal, and comparing them
shows nothing.

Root cause: after ``backward`` the engine copies the bf16 gradients into fp32 buffers, and the
optimizer steps with these. But the engine averages the bf16 gradients over the ranks, after they
were copied. The fix averages the fp32 buffers. Pipelines already average these buffers, and are
right.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.deepspeed import _local_gradients as local
from scenarios.deepspeed._history import BEFORE_BF16, NEVER_TAKEN


@dataclass
class Params(api.Knobs):
    micro_batches: int = api.knob(1, choices=(1, 2, 4), about="gradient_accumulation_steps")
    zero_stage: int = api.knob(1, choices=(0, 1), about="stage of ZeRO; both have BF16_Optimizer")
    lr: float = api.knob(0.125, above=0, about="learning rate of SGD")


SCENARIO = api.Scenario(
    report=(
        "ZeRO0 does not handle BF16 gradients properly",
        "https://github.com/deepspeedai/DeepSpeed/pull/5154",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/5170",
    symptom="the engine performs allreduce on BF16 gradients after they were copied to FP32, so "
    "gradients are not properly reduced",
    trigger="bf16 with BF16_Optimizer, without a pipeline, on several ranks",
    pins={"deepspeed": "0.13.2"},
    absent=(BEFORE_BF16, NEVER_TAKEN),
    harm="ruins training",
    visibility="silent",
    settings={"precision": "bf16", "zero_stage": (0, 1), "ranks": api.above(1)},
    seen={"deepspeed.runtime.engine.DeepSpeedEngine": {"pipeline_parallelism": False}},
    files=("deepspeed/runtime/engine.py", "deepspeed/runtime/bf16_optimizer.py"),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.13.3"),
        "control": api.control("0.13.2 on one rank", ranks=1),
        "stage_0": api.expect_symptom(about="0.13.2 with ZeRO stage 0", params={"zero_stage": 0}),
    },
)
oracle = local.oracle


def run(ctx: api.Context) -> None:
    """Train one step; compare it with the mean over the ranks, and with each rank's own."""
    from scenarios.deepspeed import _partition as partition

    p = ctx.params
    zero = {"stage": p.zero_stage}
    partition.step(ctx, p.micro_batches, 0, p.lr, zero_optimization=zero)


exercised = local.parted
