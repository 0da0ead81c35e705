"""With context parallelism, the gradient is too large by the number of context-parallel ranks.

This affects users who train with megatron-core 0.8.0, its gradient buffers, and the loss function
of its training script, which sums over the context-parallel ranks and multiplies by their number.
On 2 ranks each gradient is twice too large. The printed loss is right. SGD takes steps that are too
large, clipping cuts away too much, and the gradient norm that is logged is wrong; Adam hides most
of it.

Root cause: the script multiplies the loss by the number of context-parallel ranks, because the
buffers average over all ranks that have a copy of the model. But the buffers of this release sum
over these ranks, and divide by the number of data-parallel ranks only.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied
from scenarios.megatron_core import _context as context

oracle = applied.Applied(
    applied.Step,
    context.times_ranks,
    parts=lambda at: at.world_size,
    replicas=True,
    words=applied.of_first,
    reason="the ratio is the number of ranks that share a sequence, {ranks}",
    checks=[applied.same_direction],
)


def run(ctx: api.Context) -> None:
    """Train on sequences that the ranks share."""
    from scenarios.megatron_core import _context_training as training

    with ctx.phase("steps"):
        training.train(ctx)


exercised = context.shared
