"""Edits of calls in upstream's source, for defects and mutations. Each yields pairs of an old and a
new node, as ``Defect.edit`` does.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def calls(function: Any, name: str) -> list[Any]:
    """The calls of a function or method by name, on any object."""
    import libcst.matchers as m

    callee = m.Name(name) | m.Attribute(attr=m.Name(name))
    return list(m.findall(function, m.Call(func=callee)))


def without_call(function: Any, name: str) -> api.Edits:
    """Replace the call with ``None``."""
    import libcst as cst

    for call in calls(function, name):
        yield call, cst.Name("None")


def with_keyword(function: Any, name: str, keyword: str, value: str) -> api.Edits:
    """Add a keyword argument to the call; ``value`` is an expression."""
    import libcst as cst

    for call in calls(function, name):
        argument = cst.Arg(cst.parse_expression(value), cst.Name(keyword))
        yield call, call.with_changes(args=[*call.args, argument])


def wrapped(function: Any, name: str, expression: str) -> api.Edits:
    """Replace the call with an expression in which ``_`` stands for the call."""
    import libcst as cst
    import libcst.matchers as m

    for call in calls(function, name):
        around: Any = cst.parse_expression(expression)
        (hole,) = m.findall(around, m.Name("_"))
        yield call, around.deep_replace(hole, call)
