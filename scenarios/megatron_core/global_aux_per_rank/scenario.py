"""The gradient of an MoE's global_aux_loss is too small by the number of data-parallel ranks.

This affects users who train a mixture of experts with
``moe_router_load_balancing_type="global_aux_loss"``, which balances the experts over all rows of a
step. On 2 ranks this loss has half of the weight that ``moe_aux_loss_coeff`` sets, on 4 a quarter:
the more ranks there are, the less the experts are balanced. The gradient of the task is right.

Root cause: the loss of a rank has its own probabilities, and is divided by the number of tokens of
all ranks. The losses of the ranks add up to the right one. But the gradients of data-parallel ranks
are averaged, and not summed.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import followed, setting
from scenarios.megatron_core import _moe_shares as shares


def times_copies(function: Any) -> api.Edits:
    """The loss and its coefficient are multiplied by the number of data-parallel ranks."""
    return followed(
        setting(function, "global_aux_loss"),
        "copies = self.tp_dp_cp_group.size() // self.tp_cp_group.size()",
        "global_aux_loss = global_aux_loss * copies",
        "global_aux_loss_coeff = global_aux_loss_coeff * copies",
    )


def by_copies(step: shares.Step, records: api.Records) -> bool:
    """Each step applied the task's gradient, and the auxiliary loss's divided by the number of
    data-parallel ranks."""
    return step.has(1, 1 / len(records.ranks))


oracle = shares.Scaled(by_copies)


def run(ctx: api.Context) -> None:
    """Train the router alone, on rows that differ between ranks."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx, "global_aux_loss", copies=True)


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks had rows of their own, and the auxiliary loss had a gradient."""
    ranks = len(records.ranks)
    return api.Exercise.of(
        ranks > 1, f"{ranks} ranks had rows of their own", "there was one rank"
    ) & shares.has_auxiliary(records)
