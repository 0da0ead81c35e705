"""With tensor parallelism an MoE's auxiliary loss has a fraction of its weight: half on 2 ranks.

This affects users who train a mixture of experts with ``calculate_per_token_loss`` and sequence
parallelism, which mixtures of experts need for tensor parallelism. The loss that balances the
experts has only 1/ranks of the weight that ``moe_aux_loss_coeff`` sets. So the same settings
balance less on more ranks. The gradient of the task is right.

Root cause: all gradients are divided by the number of tokens at the end, so the router multiplies
its auxiliary loss by that number first. But it takes the number of its own tokens, which are only a
part of the sequence. The fix multiplies by the number of ranks, too. Releases that accept a padding
mask are right with one: by another bug (``moe_aux_masked``), their number of tokens is then that of
all ranks.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.megatron_core import _moe_shares as shares


def divided(step: shares.Step, records: api.Records) -> bool:
    """Each step applied 1/ranks of the auxiliary loss's gradient, and all of the task's."""
    return step.has(1, 1 / len(records.ranks))


oracle = shares.Scaled(divided)
exercised = shares.shared


def run(ctx: api.Context) -> None:
    """Train the router alone, on sequences that the ranks share."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx)
