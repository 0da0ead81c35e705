"""Edits of whole statements: found by what they call or set, then left out, repeated or guarded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.spec import Edits


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
