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

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common import applied
from scenarios.deepspeed import _local_gradients as local


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
