"""The change of megatron-core 0.19.0 to its router, as an edit of older releases."""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def _multiplied(function: Any) -> api.Edits:
    """Multiply the auxiliary loss by the ranks, where it is multiplied by the tokens."""
    import libcst as cst
    import libcst.matchers as m

    product = m.BinaryOperation(m.Name("aux_loss"), m.Multiply(), m.Name("num_tokens"))
    for node in m.findall(function, product):
        yield node, cst.parse_expression("aux_loss * num_tokens * self.tp_cp_group.size()")


def times_ranks(about: str) -> api.Defect:
    """The edit; ``about`` describes it in the words of the scenario."""
    return api.Defect(
        name="times_ranks",
        upstream="megatron-core",
        file="megatron/core/transformer/moe/router.py",
        scope="TopKRouter.attach_and_log_load_balancing_loss",
        edit=_multiplied,
        about=about,
    )
