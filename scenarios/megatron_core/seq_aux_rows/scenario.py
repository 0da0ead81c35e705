"""With calculate_per_token_loss, an MoE's seq_aux_loss shrinks with the rows of a micro-batch.

This affects users of megatron-core who balance the experts of each sequence, as DeepSeek-V3 does,
and train with ``calculate_per_token_loss``, which context parallelism and packed rows want. With 4
rows in a micro-batch the auxiliary loss has a quarter of the weight that ``moe_aux_loss_coeff``
sets: the larger the micro-batch, the less the experts are balanced. The gradient of the task is
right, and the logged auxiliary loss is, too.

Root cause: with that option all gradients are divided by the number of tokens, so the auxiliary
loss is first multiplied by the tokens of the micro-batch. The probabilities were reshaped before,
so that the experts of all rows lie beside each other, and their first dimension is the length of
one sequence.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.megatron_core import _moe_shares as shares

ROWS = 2
"""The rows of a micro-batch; ``_moe_router.ROWS``."""


def by_rows(step: shares.Step, records: api.Records) -> bool:
    """Each step applied the task's gradient, and the auxiliary loss's divided by the number of rows
    in a micro-batch."""
    return step.has(1, 1 / ROWS)


oracle = shares.Scaled(by_rows)


def run(ctx: api.Context) -> None:
    """Train the router alone, on micro-batches of two sequences."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx, "seq_aux_loss")
