"""Edits of upstream's source that defects and mutations share: of calls and of statements.

Each yields pairs of an old and a new node, as ``Defect.edit`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def calling(tree: Any, name: str) -> Iterator[Any]:
    """The lines that only call ``name``: a function, or a method of any object."""
    import libcst.matchers as m

    function = m.Name(name) | m.Attribute(attr=m.Name(name))
    yield from m.findall(tree, m.SimpleStatementLine([m.Expr(m.Call(function))]))


def stepping(tree: Any) -> Iterator[Any]:
    """The lines that call ``step`` of anything named ``optimizer``."""
    import libcst.matchers as m

    optimizer = m.Name("optimizer") | m.Attribute(attr=m.Name("optimizer"))
    call = m.Call(m.Attribute(optimizer, m.Name("step")))
    yield from m.findall(tree, m.SimpleStatementLine([m.Expr(call)]))


def setting(tree: Any, name: str) -> Iterator[Any]:
    """The lines that assign to ``name`` alone: a variable, or an attribute of any object."""
    import libcst.matchers as m

    target = m.AssignTarget(m.Name(name) | m.Attribute(attr=m.Name(name)))
    yield from m.findall(tree, m.SimpleStatementLine([m.Assign([target])]))


def returning(function: Any) -> Iterator[Any]:
    """The lines that return a value."""
    import libcst.matchers as m

    yield from m.findall(function, m.SimpleStatementLine([m.Return()]))


def left_out(lines: Iterator[Any]) -> api.Edits:
    """Replace the line with ``pass``."""
    import libcst as cst

    for line in lines:
        yield line, cst.parse_statement("pass")


def repeated(lines: Iterator[Any]) -> api.Edits:
    """Run the line twice."""
    import libcst as cst

    for line in lines:
        yield line, cst.FlattenSentinel([line, line.deep_clone()])


def followed(lines: Iterator[Any], *code: str) -> api.Edits:
    """Run these statements after the line."""
    import libcst as cst

    for line in lines:
        yield line, cst.FlattenSentinel([line, *map(cst.parse_statement, code)])


def guarded(lines: Iterator[Any], condition: str) -> api.Edits:
    """Run the line only if the condition holds."""
    import libcst as cst

    for line in lines:
        body = cst.IndentedBlock([line])
        yield line, cst.If(cst.parse_expression(condition), body)
