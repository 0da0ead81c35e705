"""With context parallelism and a loss per token, the gradient is too large by the number of ranks.

This affects users who set ``calculate_per_token_loss``, which weighs all tokens of a step alike,
and share sequences among ranks. On 2 ranks each gradient is twice too large, with the loss function
of upstream's training script. The printed loss is right. SGD takes steps that are too large, and
clipping cuts away too much; Adam hides most of it.

Root cause: the script multiplies the loss by the number of ranks that share a sequence, because the
gradient buffers average over these ranks. With a loss per token they sum, and the result is divided
by a number of tokens. ``finalize_model_grads`` sums this number over the data-parallel ranks alone,
so nothing divides by the number that the script has multiplied by. In 0.12 the scripts leave it to
the schedule to multiply, which does so only if the loss is not one per token.
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


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks shared each sequence, and the loss was one per token."""
    return context.shared(records) & api.Exercise.needs(
        records.params.per_token, "the loss was a mean over each micro-batch"
    )
