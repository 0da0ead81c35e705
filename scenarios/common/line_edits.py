"""Edits of statements in upstream's source, for defects and mutations.

Some functions choose lines; the others yield pairs of a line and its replacement, as
``Defect.edit`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api


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
