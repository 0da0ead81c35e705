"""The edit by which the gradients of a tied weight are not summed over the stages."""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def reduce_what_is_not_read(function: Any) -> api.Edits:
    """Take ``weight.grad`` for every optimizer, where bf16 has ``weight._hp_grad``."""
    import libcst.matchers as m

    choice = m.IfExp(
        body=m.Attribute(attr=m.Name("_hp_grad")), orelse=m.Attribute(attr=m.Name("grad"))
    )
    node: Any
    for node in m.findall(function, choice):
        yield node, node.orelse
