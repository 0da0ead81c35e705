"""Edits that several mutations are made of."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits


def calls(function: Any, name: str) -> list[Any]:
    """The calls of a function, or of a method of anything, by its name."""
    import libcst.matchers as m

    named = m.Name(name) | m.Attribute(attr=m.Name(name))
    return list(m.findall(function, m.Call(func=named)))


def left_out(function: Any, name: str) -> Edits:
    """Nothing in place of the call."""
    import libcst as cst

    for call in calls(function, name):
        yield call, cst.Name("None")


def told(function: Any, name: str, keyword: str, value: str) -> Edits:
    """One keyword more in the call, an expression of ours."""
    import libcst as cst

    for call in calls(function, name):
        more = cst.Arg(cst.parse_expression(value), cst.Name(keyword))
        yield call, call.with_changes(args=[*call.args, more])


def wrapped(function: Any, name: str, expression: str) -> Edits:
    """An expression of ours in place of the call, which is ``_`` in it."""
    import libcst as cst
    import libcst.matchers as m

    for call in calls(function, name):
        around: Any = cst.parse_expression(expression)
        (hole,) = m.findall(around, m.Name("_"))
        yield call, around.deep_replace(hole, call)
