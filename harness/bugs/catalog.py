"""Finds the scenarios, and loads their code. Imports no torch, no Hydra and no upstream.

Every public folder in the folder of an upstream, ``scenarios/deepspeed/bf16_clip/``, is one
scenario, and its name is the folder's: there is no other list. Its ``bug.toml`` has what is known
of the bug, so that no code is imported to list or to check. Its module ``scenario`` holds ``plan``,
``run``, ``detect`` and ``exercised``; an ``oracle`` supplies those that it does not define. See
CONTRIBUTING.md. A scenario that cannot be used affects no other one.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import traceback
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import scenarios
from harness.bugs import bug_file
from harness.bugs.api.knobs import params_class
from harness.bugs.api.spec import FIXED, Defect, Scenario, exercised, together
from harness.system.errors import HarnessError, UserError, unknown
from harness.system.text import complaint, markdown

T = TypeVar("T")

PARTS = ("plan", "run", "detect")
ORACLE = ("plan", "detect", "exercised", "insufficient_checks", "picture", "agree")
"""What the ``oracle`` of a scenario supplies, unless the scenario defines it itself. The oracle may
have ``checks`` instead of ``insufficient_checks``."""
ALL = "all"
"""The word for all scenarios, and for all variants."""

LIST = "python -m harness list"
"""The command that shows all scenarios."""

COMMON = "common"
"""The folder with models and oracles that three or more scenarios share."""
MODULE = "scenario"
MUTATIONS = "mutations.json"
"""The outcome of each mutation of a scenario."""
REPORT, REPORT_SCRIPT = "report.md", "report.py"
"""The text for the maintainers of a bug, and the script that shows it."""


class BrokenScenario(HarnessError):
    """A scenario cannot be used; the message names the file, the place in it, and the error."""


@cache
def places() -> dict[str, str]:
    """The module of each scenario, by name: ``scenarios.deepspeed.bf16_clip.scenario``. Sorted."""
    return {
        name: f"scenarios.{folders[0].parent.name}.{name}.{MODULE}"
        for name, folders in _folders().items()
    }


@cache
def _folders() -> dict[str, list[Path]]:
    """The folders of each name. More than one folder for a name is a mistake."""
    folders: dict[str, list[Path]] = {}
    for upstream in _packages(map(Path, scenarios.__path__)):
        if upstream.name != COMMON:
            for folder in _packages([upstream]):
                folders.setdefault(folder.name, []).append(folder)
    return dict(sorted(folders.items()))


def _packages(folders: Iterable[Path]) -> list[Path]:
    """The public packages in some folders."""
    return [
        folder / module.name
        for folder in folders
        for module in pkgutil.iter_modules([str(folder)])
        if module.ispkg and not module.name.startswith("_")
    ]


def forget() -> None:
    """Look for the scenarios again, after modules were added or removed."""
    places.cache_clear()
    _folders.cache_clear()
    _read.cache_clear()
    _broken.clear()


_broken: dict[str, str] = {}
"""Why scenarios cannot be used, by name: those whose code was found to be broken when it ran."""


def names() -> tuple[str, ...]:
    """The names of all scenarios, sorted; also of broken ones."""
    return tuple(places())


def sound() -> tuple[str, ...]:
    """The names of all scenarios that can be used, sorted."""
    unusable = broken()
    return tuple(name for name in names() if name not in unusable)


def broken() -> dict[str, str]:
    """Why scenarios cannot be used, by name. Code is broken only once it was loaded."""
    return {name: why for name in names() if (why := why_broken(name))}


def why_broken(name: str) -> str:
    """Why a scenario cannot be used; empty if it can."""
    try:
        scenario(name)
    except BrokenScenario as error:
        return str(error)
    return ""


def scenario(name: str) -> Scenario:
    """What is known of a bug. Raises UserError, with the choices, if there is no such scenario, and
    BrokenScenario if it cannot be used."""
    _lookup(name, places())
    if name not in _broken:
        try:
            return _read(name)
        except (ValueError, OSError) as error:
            place = file(name).replace(f"{MODULE}.py", bug_file.FILE)
            why = complaint(error) if isinstance(error, OSError) else error
            _broken[name] = f"{place}: {why}"
    raise BrokenScenario(_broken[name])


@cache
def _read(name: str) -> Scenario:
    folders = _folders()[name]
    if len(folders) > 1:
        upstreams = [folder.parent.name for folder in folders]
        raise ValueError(f"{' and '.join(upstreams)} both have a scenario of this name")
    return bug_file.read(folders[0] / bug_file.FILE, places()[name])


def load(name: str) -> ModuleType:
    """The code of a scenario, with its class ``Params``. Raises as ``scenario`` does."""
    bug, module = scenario(name), code(name)
    if getattr(module, "bug", None) is not bug:
        check = getattr(module, "check_params", None)
        params = params_class(bug.knobs, check) if check else bug.params
        vars(module).update(bug=bug, Params=params)
        if bug.triggered:
            vars(module)["exercised"] = partial(exercised, bug.triggered)
    if not hasattr(module, "exercised"):
        mark_broken(name, "it lacks exercised")
        raise BrokenScenario(_broken[name])
    return module


def code(name: str) -> ModuleType:
    """The code of a scenario, with what its oracle supplies. Raises as ``scenario`` does."""
    place = _lookup(name, places())
    if name in _broken:
        raise BrokenScenario(_broken[name])
    try:
        module = _with_oracle(importlib.import_module(place))
        missing = [part for part in PARTS if not hasattr(module, part)]
        why = f"it lacks {', '.join(missing)}" if missing else ""
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        why = f"{_line_of(error)}: {complaint(error)}".removeprefix(": ")
    if why:
        mark_broken(name, why)
        raise BrokenScenario(_broken[name])
    return module


def _with_oracle(module: ModuleType) -> ModuleType:
    """The module, with what its oracle supplies."""
    oracle = getattr(module, "oracle", None)
    for part in ORACLE:
        if not hasattr(module, part) and hasattr(oracle, part):
            setattr(module, part, getattr(oracle, part))
    checks = getattr(oracle, "checks", None)
    if checks is not None and not hasattr(module, "insufficient_checks"):
        module.insufficient_checks = together(*checks)  # type: ignore[attr-defined]
    return module


def _line_of(error: BaseException) -> str:
    """The last line under ``scenarios/`` in the traceback of an exception, for example
    ``scenarios/deepspeed/bf16_clip/scenario.py, line 7``; empty if there is none."""
    lines = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append((error.filename, error.lineno))
    ours = [
        f"scenarios/{Path(path).relative_to(root)}, line {line}"
        for path, line in lines
        for root in scenarios.__path__
        if Path(path).is_relative_to(root)
    ]
    return ours[-1] if ours else ""


def mark_broken(name: str, why: str) -> None:
    """Count a scenario as broken, also for a mistake that shows only when it is used."""
    path = file(name)
    _broken[name] = why if why.startswith(path) else f"{path}: {why}"


def has_report(name: str) -> bool:
    """Whether a scenario has a text for the maintainers."""
    return (folder(name) / REPORT).is_file()


def folder(name: str) -> Path:
    """The folder with everything about one scenario: ``scenarios/deepspeed/bf16_clip``. Raises
    UserError, with the choices, if there is no such scenario."""
    return _lookup(name, _folders())[0]


def _lookup(name: str, by_name: Mapping[str, T]) -> T:
    if name not in by_name:
        raise UserError(unknown_scenario(name))
    return by_name[name]


def unknown_scenario(name: str, *others: str) -> str:
    """The line for a name that no scenario has; ``others`` may stand for scenarios, as ``all``."""
    return unknown("scenario", name, names(), shown_by=LIST, others=others)


def file(name: str) -> str:
    """A scenario's module in the project: ``scenarios/deepspeed/bf16_clip/scenario.py``."""
    return f"{places()[name].replace('.', '/')}.py"


def story(name: str) -> str:
    """The docstring of a scenario's module: what goes wrong, for whom, and why. It is read, and not
    imported."""
    text = (_folders()[name][0] / f"{MODULE}.py").read_text(encoding="utf-8")
    return markdown(ast.get_docstring(ast.parse(text)) or "").strip()


def upstreams() -> list[str]:
    """Every package that a scenario pins, sorted, without broken scenarios."""
    return sorted({pin for name in sound() for pin in scenario(name).pins})


def only_vehicles() -> set[str]:
    """The packages that scenarios pin only to drive code of another one: no bug is theirs."""
    vehicles = {pin for name in sound() for pin in scenario(name).vehicles}
    return vehicles - {
        pin for name in sound() for pin in scenario(name).pins if pin not in scenario(name).vehicles
    }


def proposal(name: str) -> tuple[Defect, ...]:
    """The edits that mend a bug as its report proposes; empty if there is none."""
    return scenario(name).proposal or scenario(name).variant(FIXED).defects


def subjects() -> list[str]:
    """Every package that has a bug here, sorted."""
    return sorted({subject(name) for name in sound()})


def subject(name: str) -> str:
    """The package whose bug this is."""
    return scenario(name).subject


def of_package(package: str) -> list[str]:
    """The scenarios whose bug is in a package, sorted; empty if there is none."""
    return [name for name in sound() if subject(name) == package]


def selected(word: str) -> list[str]:
    """The scenarios that a word selects: one, those of a package, or all. Raises UserError, with
    the choices, if there is none."""
    if word == ALL:
        return list(sound())
    if selection := of_package(word):
        return selection
    scenario(word)
    return [word]
