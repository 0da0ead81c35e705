"""With context parallelism an MoE's auxiliary loss has a fraction of its weight: half on 2 ranks.

This affected users of megatron-core who train a mixture of experts on long sequences that several
ranks share. On 2 ranks the loss that balances the experts has half of the weight that
``moe_aux_loss_coeff`` sets, on 8 an eighth: who adds ranks for longer sequences balances the
experts less. The gradient of the task is right, and the logged auxiliary loss is, too.

Root cause: each rank has the loss of its own tokens, and gradients are averaged over the ranks
though they must be added. The schedule multiplies the loss of the task by the context-parallel size
for that, and left out the auxiliary loss until 0.16.0. ``moe_aux_tensor_parallel`` is the same
fault for tensor parallelism, with ``calculate_per_token_loss``.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.megatron_core import _moe_shares as shares


def by_ranks(step: shares.Step, records: api.Records) -> bool:
    """Each step applied the task's gradient, and the auxiliary loss's divided by the number of
    context-parallel ranks."""
    return step.has(1, 1 / len(records.ranks))


oracle = shares.Scaled(by_ranks)


def run(ctx: api.Context) -> None:
    """Train the router alone, on sequences of which each rank has a part."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx, context=True)
