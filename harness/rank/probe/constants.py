"""Sets constants for which a script has no arguments: ``--set batch_size={rows}``.

The script's file stays as it is. Only the syntax tree that Python compiles is changed, and it keeps
its line numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.system.errors import UserError


def changed(source: str, file: str, values: Mapping[str, Any]) -> ast.Module:
    """The script with these values of its constants: of variables and attributes, of parameters'
    defaults, in a dict, and of a call's keyword arguments. Raises UserError for a name that has no
    constant."""
    tree = ast.parse(source, file)
    pairs = [(n, v) for node in ast.walk(tree) for n, v in _named(node) if n and _is_constant(v)]
    names = sorted({name for name, _ in pairs})
    for name in values:
        if name not in names:
            known = ", ".join(names) or "none"
            raise UserError(f"--set {name}: {file} has no constant of this name; it has {known}")
    replacements = {
        id(node): ast.copy_location(ast.parse(repr(values[name]), mode="eval").body, node)
        for name, node in pairs
        if name in values
    }
    return ast.fix_missing_locations(_Replacement(replacements).visit(tree))


@dataclass
class _Replacement(ast.NodeTransformer):
    nodes: Mapping[int, ast.expr]
    """By the id of the node that each replaces."""

    def visit(self, node: ast.AST) -> Any:
        return self.nodes.get(id(node)) or self.generic_visit(node)


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The values to which a part of a script gives names."""
    if isinstance(node, ast.Assign):
        yield from ((_name(target), node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _name(node.target), node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield str(key.value) if isinstance(key, ast.Constant) else "", value
    elif isinstance(node, ast.keyword):
        yield node.arg or "", node.value
    elif isinstance(node, ast.arguments):
        positional = reversed([*node.posonlyargs, *node.args])
        pairs = [*zip(positional, reversed(node.defaults))]  # noqa: B905
        pairs += [(one, v) for one, v in zip(node.kwonlyargs, node.kw_defaults, strict=True) if v]
        yield from ((parameter.arg, value) for parameter, value in pairs)


def _name(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def _is_constant(value: ast.expr) -> bool:
    """Whether an expression contains no names: ``32``, ``"adam"``, ``5 * 8``."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(part, kinds) for part in ast.walk(value))


def value(text: str) -> Any:
    """The value of a word of the command line: a number, True, None or another literal of Python,
    otherwise the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
