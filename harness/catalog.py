"""Which scenarios there are. Imports no torch, no Hydra and no upstream, so listing is quick.

Every public module of the ``scenarios`` package is one scenario: there is no second list. Such a
module holds ``Params``, ``SCENARIO``, ``run``, ``detect`` and ``exercised``; see CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import scenarios
from harness.spec import Scenario, UserError

ROOT = Path(__file__).parent.parent
PARTS = ("Params", "SCENARIO", "run", "detect", "exercised")


@cache
def names() -> tuple[str, ...]:
    """The names of all scenarios, sorted."""
    found = pkgutil.iter_modules(scenarios.__path__)
    return tuple(sorted(m.name for m in found if not m.ispkg and not m.name.startswith("_")))


def load(name: str) -> ModuleType:
    """The module of one scenario; raises UserError, with the choices, if there is none."""
    if name not in names():
        raise UserError(unknown("scenario", name, names()))
    module = importlib.import_module(f"scenarios.{name}")
    missing = [part for part in PARTS if not hasattr(module, part)]
    assert not missing, f"scenarios/{name}.py lacks {', '.join(missing)}"
    return module


def scenario(name: str) -> Scenario:
    """The metadata of one scenario."""
    found: Scenario = load(name).SCENARIO
    return found


def story(name: str) -> str:
    """The docstring of a scenario's module: what happened, to whom, and why."""
    return (load(name).__doc__ or "").strip()


def sources(*modules: str) -> list[Path]:
    """The files of modules and of all that they import of ours: ``scenarios.bf16_clip``, say."""
    waiting, seen, files = list(modules), set(), set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        place = ROOT / module.replace(".", "/")
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                files.add(file)
                waiting += _imports(file)
    return sorted(files)


def _imports(file: Path) -> Iterator[str]:
    """What a file imports, at its top or inside a function; perhaps names within modules, too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def unknown(what: str, given: str, choices: Iterable[str]) -> str:
    """One line that says what was not found, guesses what was meant, and names the choices."""
    choices = list(choices)
    guess = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f": did you mean {guess[0]}?" if guess else "."
    return f"no {what} '{given}'{hint} Choices: {', '.join(choices) or 'none'}."
