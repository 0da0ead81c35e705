"""Which releases were found to be affected: kept with the scenarios, and shown in their pages.

``affected.json`` in a scenario's folder has a fact for each combination of releases that was
tested: ``python -m harness matrix ... --record`` writes it. Never edit it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from harness import catalog
from harness.files import write_whole, writing
from harness.sweep.cells import Cell, Status
from harness.upstream import pins

FILE = "affected.json"
FACTS = ("status", "reason", "step", "lane", "python", "torch", "date")

Fact = Mapping[str, Any]


def record(cells: Iterable[Cell]) -> None:
    """Add cells to the files of their scenarios; they replace older ones of the same releases.

    A certain status is never replaced by an uncertain one. Releases that a scenario no longer
    covers are removed from its file.
    """
    ordered = sorted(cells, key=lambda cell: cell.scenario)
    for scenario, of_one in itertools.groupby(ordered, key=lambda cell: cell.scenario):
        _record(scenario, of_one)


def _record(scenario: str, cells: Iterable[Cell]) -> None:
    facts = list(of(scenario))
    for cell in cells:
        same = next((old for old in facts if old["pins"] == cell.pins), None)
        if same and Status(same["status"]).certain and not cell.status.certain:
            continue
        facts = [old for old in facts if old is not same] + [_fact(cell)]
    scope, file = catalog.scenario(scenario), catalog.folder(scenario) / FILE
    kept = sorted((fact for fact in facts if pins.covers(scope, fact["pins"])), key=_order)
    with writing(file, "checkout"):
        write_whole(file, json.dumps(kept, indent=1) + "\n")


def of(scenario: str) -> list[Fact]:
    """The recorded facts of one scenario, oldest releases first; empty where there is no file."""
    file = catalog.folder(scenario) / FILE
    if not file.is_file():
        return []
    found: list[Fact] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _fact(cell: Cell) -> Fact:
    told = cell.to_json()
    first = (cell.reason.splitlines() or [""])[0]
    return {"pins": dict(cell.pins)} | {k: told[k] for k in FACTS} | {"reason": first}


def _order(fact: Fact) -> list[Version]:
    return [Version(version) for version in fact["pins"].values()]


def known(scenario: str, package: str, version: str) -> tuple[Status, str] | None:
    """What is recorded of a release: its own answer, or that of both its neighbours.

    None where there is nothing, the neighbours differ, or it is newer than all that were asked.
    """
    facts = [f for f in of(scenario) if Status(f["status"]).certain]
    by_release: dict[Version, set[str]] = {}
    for fact in facts:
        by_release.setdefault(Version(fact["pins"][package]), set()).add(fact["status"])
    asked = Version(version)
    older = max((v for v in by_release if v <= asked), default=None)
    newer = min((v for v in by_release if v >= asked), default=None)
    if older is None or newer is None:
        return None
    answers = by_release[older] | by_release[newer]
    if len(answers) != 1:
        return None
    (answer,) = answers
    between = f"as {older} and {newer} were" if older != newer else "as recorded"
    return Status(answer), f"{answer}, {between}"


def section(scenario: str, facts: Sequence[Fact]) -> str:
    """The generated section: which releases answered what, those alike in one row."""
    package = _asked(scenario, facts)
    lines = [
        "## Affected releases",
        "",
        "As released, no defect put in; each a run of its own "
        f"(`python -m harness matrix scenario={scenario} ... --record`).",
        "",
        f"| {package} | | with | lane | Python | torch | when | why |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for alike, group in itertools.groupby(facts, key=lambda fact: _alike(package, fact)):
        members = list(group)
        releases = ", ".join(fact["pins"][package] for fact in members)
        answer, *others, why = alike
        cells = [releases, f"**{answer}**", *others, _cell(why)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _asked(scenario: str, facts: Sequence[Fact]) -> str:
    """The package that the rows go by: the one of which most releases were asked."""
    pins = catalog.scenario(scenario).pins
    return max(pins, key=lambda name: len({fact["pins"][name] for fact in facts}))


def _alike(package: str, fact: Fact) -> tuple[str, ...]:
    """What facts must have in common to share a row, the answer first."""
    others = ", ".join(f"{n} {v}" for n, v in fact["pins"].items() if n != package)
    places = [str(fact[k]) for k in ("lane", "python", "torch", "date")]
    why = "" if Status(fact["status"]).certain else fact["reason"]
    return (fact["status"], others, *places, why)


def _cell(text: str, widest: int = 160) -> str:
    cut = text if len(text) <= widest else text[: widest - 4] + " ..."
    return cut.replace("|", "\\|").replace("<", "&lt;")
