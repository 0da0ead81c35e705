"""What else could be wrong with the gradients of a router."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.mutation import mutation

UTILS = "megatron/core/transformer/moe/moe_utils.py"


@mutation(
    UTILS, "MoEAuxLossAutoScaler.backward", "the task's gradient does not go through the router"
)
def auxiliary_alone(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.Return(m.Tuple())):
        values = cst.parse_expression("(grad_output * 0, scaled_aux_loss_grad)")
        yield node, cst.Return(values)


@mutation(
    UTILS, "switch_load_balancing_loss_func", "the auxiliary loss is three times the right one"
)
def auxiliary_thrice(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.Return(m.Name("aux_loss"))):
        yield node, cst.Return(cst.parse_expression("3 * aux_loss"))


MUTATIONS = (
    auxiliary_alone,
    auxiliary_thrice,
    replace(auxiliary_alone, variant="buggy"),
    replace(auxiliary_thrice, variant="buggy"),
)
