"""Which scenarios there are. Imports no torch, no Hydra and no upstream, so listing is quick.

Every public module in a folder of an upstream, ``scenarios/deepspeed/``, is one scenario: there is
no second list, and its name is the module's. Such a module holds ``Params``, ``SCENARIO``,
``plan``, ``run``, ``detect`` and ``exercised``; see CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import scenarios
from harness.files import ROOT
from harness.spec import Scenario, UserError

PARTS = ("Params", "SCENARIO", "plan", "run", "detect", "exercised")
SHARED = ("workloads", "oracles")
"""The folders that hold no scenarios, but what several of them train and judge by."""


@cache
def places() -> dict[str, str]:
    """The module of each scenario by its name, sorted: ``scenarios.deepspeed.bf16_clip``."""
    found: dict[str, str] = {}
    for folder in _public(scenarios.__path__, packages=True):
        if folder in SHARED:
            continue
        for name in _public([str(Path(p) / folder) for p in scenarios.__path__], packages=False):
            assert name not in found, f"{name} is in {folder}, and {found[name]} as well"
            found[name] = f"scenarios.{folder}.{name}"
    return dict(sorted(found.items()))


def _public(folders: Iterable[str], *, packages: bool) -> list[str]:
    modules = pkgutil.iter_modules(folders)
    return [m.name for m in modules if m.ispkg is packages and not m.name.startswith("_")]


def names() -> tuple[str, ...]:
    """The names of all scenarios, sorted."""
    return tuple(places())


def load(name: str) -> ModuleType:
    """The module of one scenario; raises UserError, with the choices, if there is none."""
    if name not in places():
        raise UserError(unknown("scenario", name, names()))
    module = importlib.import_module(places()[name])
    missing = [part for part in PARTS if not hasattr(module, part)]
    assert not missing, f"{file(name)} lacks {', '.join(missing)}"
    return module


def file(name: str) -> str:
    """Where a scenario's module lies in the project: ``scenarios/deepspeed/bf16_clip.py``."""
    return f"{places()[name].replace('.', '/')}.py"


def scenario(name: str) -> Scenario:
    """The metadata of one scenario."""
    found: Scenario = load(name).SCENARIO
    return found


def story(name: str) -> str:
    """The docstring of a scenario's module: what happened, to whom, and why."""
    return (load(name).__doc__ or "").strip()


def upstreams() -> list[str]:
    """Every package that some scenario pins, sorted."""
    return sorted({pin for name in names() for pin in scenario(name).pins})


def sources(*modules: str) -> list[Path]:
    """The files of modules, such as ``harness.trial.rank``, and of all they import of ours."""
    waiting, seen, files = list(modules), set(), set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        place = ROOT / module.replace(".", "/")
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                files.add(path)
                waiting += _imports(path)
    return sorted(files)


def _imports(path: Path) -> Iterator[str]:
    """What a file imports, at its top or inside a function; perhaps names within modules, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def digest(*modules: str) -> str:
    """A digest of what modules, and all they import of ours, do: not of comments or docstrings."""
    made = hashlib.sha256()
    for path in sources(*modules):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                node.body = [line for line in node.body if not _only_said(line)]
        made.update(f"{path.relative_to(ROOT)}\n{ast.dump(tree)}\n".encode())
    return made.hexdigest()


def _only_said(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def unknown(what: str, given: str, choices: Iterable[str]) -> str:
    """One line that says what was not found, guesses what was meant, and names the choices."""
    choices = list(choices)
    guess = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f": did you mean {guess[0]}?" if guess else "."
    return f"no {what} '{given}'{hint} Choices: {', '.join(choices) or 'none'}."
