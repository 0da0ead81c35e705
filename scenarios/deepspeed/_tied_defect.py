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


DEFECT = api.Defect(
    upstream="deepspeed",
    file="deepspeed/runtime/pipe/engine.py",
    scope="PipelineEngine._exec_reduce_tied_grads",
    edit=reduce_what_is_not_read,
    about="sums weight.grad over the stages, which the bf16 optimizer does not read: it steps with "
    "its fp32 buffer, where each stage has its own gradient only",
)
