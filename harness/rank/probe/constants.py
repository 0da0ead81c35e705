"""Sets constants for which a script has no arguments: ``--set batch_size={rows}``.

The script's file stays as it is. Only the syntax tree that Python compiles is changed, and it keeps
its line numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.system.errors import UserError


@dataclass
class SetConstants(ast.NodeTransformer):
    """Replaces constants by name: values of variables and attributes, parameters' defaults, values
    in a dict, and keyword arguments of a call."""

    values: Mapping[str, Any]
    places: dict[str, list[int]] = field(default_factory=dict)
    """By name, the lines in which it was replaced."""
    others: dict[str, int] = field(default_factory=dict)
    """By name, the first line of each constant that was left as it is."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        for target in node.targets:
            node.value = self._replaced(_name(target), node.value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self._replaced(_name(node.target), node.value)
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        keys = [str(key.value) if isinstance(key, ast.Constant) else "" for key in node.keys]
        pairs = zip(keys, node.values, strict=True)
        node.values = [self._replaced(key, value) for key, value in pairs]
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.value = self._replaced(node.arg or "", node.value)
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        names = [one.arg for one in (*node.posonlyargs, *node.args)]
        with_default = names[len(names) - len(node.defaults) :]
        pairs = zip(with_default, node.defaults, strict=True)
        node.defaults = [self._replaced(name, value) for name, value in pairs]
        keyword_only = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        node.kw_defaults = [value and self._replaced(one.arg, value) for one, value in keyword_only]
        return self.generic_visit(node)

    def _replaced(self, name: str, value: ast.expr) -> ast.expr:
        if not (name and _is_constant(value)):
            return value
        if name not in self.values:
            self.others.setdefault(name, value.lineno)
            return value
        self.places.setdefault(name, []).append(value.lineno)
        replacement = ast.parse(repr(self.values[name]), mode="eval").body
        return ast.copy_location(replacement, value)


def _name(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def _is_constant(value: ast.expr) -> bool:
    """Whether an expression contains no names: ``32``, ``"adam"``, ``5 * 8``."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(part, kinds) for part in ast.walk(value))


def changed(source: str, file: str, values: Mapping[str, Any]) -> ast.Module:
    """The script with these values. Raises UserError for a name that has no constant."""
    setting = SetConstants(values)
    tree: ast.Module = setting.visit(ast.parse(source, file))
    for name in values:
        if name not in setting.places:
            names = ", ".join(sorted({*setting.others, *setting.places})) or "none"
            raise UserError(f"--set {name}: {file} has no constant of this name; it has {names}")
    return ast.fix_missing_locations(tree)


def value(text: str) -> Any:
    """The value of a word of the command line: a number, True, None or another literal of Python,
    otherwise the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
