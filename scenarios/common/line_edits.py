"""Edits of statements in upstream's source, for defects and mutations.

Some functions choose lines; the others yield pairs of a line and its replacement, as
``Defect.edit`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api


def calling(tree: Any, name: str, of: str = "") -> Iterator[Any]:
    """The lines that only call ``name``: a function, or a method of any object; or, if ``of`` is
    given, a method of anything with that name."""
    import libcst.matchers as m

    owner = m.Name(of) | m.Attribute(attr=m.Name(of)) if of else m.DoNotCare()
    method = m.Attribute(owner, m.Name(name))
    function = method if of else m.Name(name) | method
    yield from m.findall(tree, m.SimpleStatementLine([m.Expr(m.Call(function))]))


def setting(tree: Any, name: str) -> Iterator[Any]:
    """The lines that assign to ``name`` alone: a variable, or an attribute of any object."""
    import libcst.matchers as m

    target = m.AssignTarget(m.Name(name) | m.Attribute(attr=m.Name(name)))
    yield from m.findall(tree, m.SimpleStatementLine([m.Assign([target])]))


def left_out(lines: Iterator[Any]) -> api.Edits:
    """Replace the line with ``pass``."""
    import libcst as cst

    for line in lines:
        yield line, cst.parse_statement("pass")


def followed(lines: Iterator[Any], *code: str) -> api.Edits:
    """Run these statements after the line."""
    import libcst as cst

    for line in lines:
        yield line, cst.FlattenSentinel([line, *map(cst.parse_statement, code)])
