"""Finds the code of ours that a module runs, and its digest, under which results are stored."""

from __future__ import annotations

import ast
import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from harness.system.errors import UserError, unknown
from harness.system.files import ROOT

_parsing = threading.Lock()
"""CPython 3.11 raises SystemError ("AST constructor recursion depth mismatch") now and then if two
threads parse at once."""


@dataclass(frozen=True)
class _Module:
    """What matters of a module's text."""

    imports: frozenset[str]
    """What it imports, at its top or inside a function; perhaps also names within modules."""
    code: str
    """Its syntax tree without comments, docstrings and pictures."""


def sources(*modules: str) -> list[Path]:
    """The files of modules, such as ``harness.rank.scenario``, and of all our modules that they
    import."""
    waiting, visited, files = list(modules), set(), set()
    while waiting:
        module = waiting.pop()
        if module in visited:
            continue
        visited.add(module)
        place = ROOT / module.replace(".", "/")
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                files.add(path)
                waiting += _read(path).imports
    return sorted(files)


def digest(*modules: str) -> str:
    """A digest of the code of modules and of all our modules that they import, without comments,
    docstrings and pictures."""
    checksum = hashlib.sha256()
    for path in sources(*modules):
        checksum.update(f"{path.relative_to(ROOT)}\n{_read(path).code}\n".encode())
    return checksum.hexdigest()


def _read(path: Path) -> _Module:
    text = path.read_text(encoding="utf-8")
    with _parsing:
        return _parsed(text)


@cache
def _parsed(text: str) -> _Module:
    tree = ast.parse(text)
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [line for line in node.body if not _has_no_effect(line)]
    return _Module(frozenset(imports), ast.dump(tree))


def _has_no_effect(line: ast.stmt) -> bool:
    """Whether this statement is a docstring or a picture."""
    if isinstance(line, ast.FunctionDef):
        return line.name == "picture"
    if isinstance(line, ast.Assign):
        return [ast.unparse(target) for target in line.targets] == ["picture"]
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def refuse_without_name(file: Path, name: str) -> None:
    """Raise UserError, with the functions of a file, if nothing in it can make a name. Its code is
    read and not run, so a file that makes names in a way that is not to be seen is not refused."""
    with suppress(SyntaxError, ValueError, RecursionError), _parsing:  # to be reported when it runs
        tree = ast.parse(file.read_bytes())
        fields = ("name", "asname", "id", "attr")  # of what is defined, imported or used
        words = {getattr(node, field, None) for node in ast.walk(tree) for field in fields}
        if words.isdisjoint({name, *MAKERS}):
            functions = [n.name for n in tree.body if isinstance(n, FUNCTIONS)]
            raise UserError(f"{file}: {unknown('function', name, functions)}")


MAKERS = ("*", "globals", "exec", "setattr", "vars", "__dict__", "__getattr__")
"""What makes names that no text has."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_importable(package: str) -> bool:
    """Whether a module or a package is beside the user or on the path. Does not import it."""
    beside = Path(package).is_dir() or Path(f"{package}.py").is_file()
    return beside or find_spec(package) is not None
