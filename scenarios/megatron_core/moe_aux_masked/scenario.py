"""With a padding mask, an MoE's auxiliary loss is multiplied by the tensor-parallel size.

This affects users who train a mixture of experts with ``calculate_per_token_loss``, sequence
parallelism and a padding mask. The loss that balances the experts counts as many times as there are
ranks. The gradient of the task is right.

Root cause: with a mask, ``get_tokens_per_expert_and_token_count`` counts a rank's own tokens from
its tokens per expert. But the all-reduce before that has changed these in place, so they are the
tokens of all ranks. Until 0.18 that was right by accident: another bug,
``moe_aux_tensor_parallel``, took a rank's own tokens instead of those of all ranks. The fix of that
bug, in 0.19.0, exposed this one. Here that fix is put into 0.16.1, because 0.19 needs Python 3.12.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.megatron_core import _moe_shares as shares


def by_ranks(step: shares.Step, records: api.Records) -> bool:
    """Each step applied the auxiliary loss's gradient once for each rank, and the task's once."""
    return step.has(1, len(records.ranks))


oracle = shares.Scaled(by_ranks)


def run(ctx: api.Context) -> None:
    """Train the router alone, on sequences that the ranks share."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """The ranks shared padded sequences, the loss was one per token, and the auxiliary loss had a
    gradient."""
    masked = records.params.masked
    return shares.shared(records) & api.Exercise.of(
        masked, "there was a padding mask", "without a mask"
    )
