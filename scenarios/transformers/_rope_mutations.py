"""Other faults of LLaMA's rotary embedding, for several releases."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.mutation import mutation

LLAMA = "transformers/models/llama/modeling_llama.py"


def doubled(function: Any) -> api.Edits:
    """Replace 1.0, which is divided by the powers of the base, with 2.0."""
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.BinaryOperation(m.Float("1.0"), m.Divide())):
        yield node, node.with_changes(left=cst.Float("2.0"))


@mutation(LLAMA, "rotate_half", "queries and keys are reflected, and not turned")
def reflected(function: Any) -> api.Edits:
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.UnaryOperation(m.Minus(), m.Name("x2"))):
        yield node, node.expression
