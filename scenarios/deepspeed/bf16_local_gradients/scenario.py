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

from harness.bugs import api
from scenarios.deepspeed import _local_gradients as local

oracle = local.oracle


def run(ctx: api.Context) -> None:
    """Train one step; compare it with the mean over the ranks, and with each rank's own."""
    from scenarios.deepspeed import _partition as partition

    p = ctx.params
    zero = {"stage": p.zero_stage}
    partition.step(ctx, p.micro_batches, 0, p.lr, zero_optimization=zero)


exercised = local.parted
