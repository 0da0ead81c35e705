"""Edits of upstream's source that several bugs use: of calls, and of whole statements.

Each yields pairs of an old and a new node, as ``Defect.edit`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.spec import Edits


def calls(function: Any, name: str) -> list[Any]:
    """The calls of a function, or of a method of anything, by its name."""
    import libcst.matchers as m

    named = m.Name(name) | m.Attribute(attr=m.Name(name))
    return list(m.findall(function, m.Call(func=named)))


def without_call(function: Any, name: str) -> Edits:
    """Nothing in place of the call."""
    import libcst as cst

    for call in calls(function, name):
        yield call, cst.Name("None")


def with_keyword(function: Any, name: str, keyword: str, value: str) -> Edits:
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


def calling(tree: Any, name: str) -> Iterator[Any]:
    """The lines that only call ``name``: a function, or the method of anything."""
    import libcst.matchers as m

    function = m.Name(name) | m.Attribute(attr=m.Name(name))
    yield from m.findall(tree, m.SimpleStatementLine([m.Expr(m.Call(function))]))


def stepping(tree: Any) -> Iterator[Any]:
    """The lines that take a step of what is named ``optimizer``."""
    import libcst.matchers as m

    own = m.Name("optimizer") | m.Attribute(attr=m.Name("optimizer"))
    call = m.Call(m.Attribute(own, m.Name("step")))
    yield from m.findall(tree, m.SimpleStatementLine([m.Expr(call)]))


def setting(tree: Any, name: str) -> Iterator[Any]:
    """The lines that set ``name`` alone: a variable, or the attribute of anything."""
    import libcst.matchers as m

    target = m.AssignTarget(m.Name(name) | m.Attribute(attr=m.Name(name)))
    yield from m.findall(tree, m.SimpleStatementLine([m.Assign([target])]))


def left_out(lines: Iterator[Any]) -> Edits:
    """The line is not run."""
    import libcst as cst

    for line in lines:
        yield line, cst.parse_statement("pass")


def repeated(lines: Iterator[Any]) -> Edits:
    """The line is run twice."""
    import libcst as cst

    for line in lines:
        yield line, cst.FlattenSentinel([line, line.deep_clone()])


def followed(lines: Iterator[Any], *code: str) -> Edits:
    """The line is run, and then these statements."""
    import libcst as cst

    for line in lines:
        yield line, cst.FlattenSentinel([line, *map(cst.parse_statement, code)])


def guarded(lines: Iterator[Any], condition: str) -> Edits:
    """The line is run only where the condition holds."""
    import libcst as cst

    for line in lines:
        body = cst.IndentedBlock([line])
        yield line, cst.If(cst.parse_expression(condition), body)
