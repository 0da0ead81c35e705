"""The change of megatron-core 0.19.0 to its router, as an edit of older releases."""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def times_ranks(function: Any) -> api.Edits:
    """Multiply the auxiliary loss by the ranks, where it is multiplied by the tokens."""
    import libcst as cst
    import libcst.matchers as m

    product = m.BinaryOperation(m.Name("aux_loss"), m.Multiply(), m.Name("num_tokens"))
    for node in m.findall(function, product):
        yield node, cst.parse_expression("aux_loss * num_tokens * self.tp_cp_group.size()")
