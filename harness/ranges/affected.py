"""Which releases are affected: recorded in the scenarios' folders, and shown on their pages.

``affected.json`` in a scenario's folder has a fact for each combination of releases that was
tested: ``python -m harness matrix ... --record`` writes it. Never edit it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from harness import catalog
from harness.sweep.cell import Cell, Status
from harness.system.files import write_whole, writing
from harness.system.text import markdown_table, short
from harness.upstream import pins

FILE = "affected.json"
FACTS = ("status", "reason", "step", "lane", "python", "torch", "date")
CONFIRMED = "confirmed"
"""The day on which a run last gave the same result; missing if only the first run did."""

OVERLAY = re.compile(r"/\S*/site-packages/")
"""The path of an overlay on this machine, which means nothing on another one."""

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
    scope = catalog.scenario(scenario)
    _write(scenario, sorted((f for f in facts if pins.covers(scope, f["pins"])), key=_order))


def of(scenario: str) -> list[Fact]:
    """The recorded facts of one scenario, oldest releases first; empty where there is no file."""
    file = catalog.folder(scenario) / FILE
    if not file.is_file():
        return []
    found: list[Fact] = json.loads(file.read_text(encoding="utf-8"))
    return found


def confirm(cells: Iterable[Cell]) -> None:
    """Note in the files of their scenarios that runs of these days gave the recorded results."""
    ordered = sorted(cells, key=lambda cell: cell.scenario)
    for scenario, of_one in itertools.groupby(ordered, key=lambda cell: cell.scenario):
        days = {tuple(sorted(cell.pins.items())): cell.date for cell in of_one}
        facts = [dict(fact) for fact in of(scenario)]
        for fact in facts:
            day = days.get(tuple(sorted(fact["pins"].items())))
            if day and day > last_seen(fact):
                fact[CONFIRMED] = day
        _write(scenario, facts)


def _write(scenario: str, facts: Sequence[Fact]) -> None:
    file = catalog.folder(scenario) / FILE
    with writing(file, "checkout"):
        write_whole(file, json.dumps(facts, indent=1) + "\n")


def last_seen(fact: Fact) -> str:
    """The day (ISO) of the last run that gave a recorded result."""
    return str(fact.get(CONFIRMED, fact["date"]))


def reason(cell: Cell) -> str:
    """The reason of a cell as it is recorded: its first line, without paths of this machine."""
    return OVERLAY.sub("", (cell.reason.splitlines() or [""])[0])


def _fact(cell: Cell) -> Fact:
    fields = cell.to_json()
    return {"pins": dict(cell.pins)} | {k: fields[k] for k in FACTS} | {"reason": reason(cell)}


def _order(fact: Fact) -> list[Version]:
    return [Version(version) for version in fact["pins"].values()]


def section(scenario: str, facts: Sequence[Fact]) -> str:
    """The generated section of a page: the status of each release; equal facts share a row."""
    package = _varied(scenario, facts)
    rows = []
    for alike, group in itertools.groupby(facts, key=lambda fact: _alike(package, fact)):
        releases = ", ".join(fact["pins"][package] for fact in group)
        status, *others, why = alike
        rows.append([releases, f"**{status}**", *others, short(why, 160).replace("<", "&lt;")])
    columns = [package, "status", "other pins", "lane", "Python", "torch", "tested on", "reason"]
    empty = [at for at in range(len(columns)) if not any(row[at] for row in rows)]
    columns, *rows = [
        [c for at, c in enumerate(row) if at not in empty] for row in (columns, *rows)
    ]
    return "\n".join(
        [
            "## Affected releases",
            "",
            "Each release was run as published, without an edit "
            f"(`python -m harness matrix scenario={scenario} ... --record`).",
            "",
            markdown_table(columns, rows),
        ]
    )


def _varied(scenario: str, facts: Sequence[Fact]) -> str:
    """The package of the rows: the one with the most tested releases."""
    pins = catalog.scenario(scenario).pins
    return max(pins, key=lambda name: len({fact["pins"][name] for fact in facts}))


def _alike(package: str, fact: Fact) -> tuple[str, ...]:
    """What facts must have in common to share a row, the status first."""
    others = ", ".join(f"{n} {v}" for n, v in fact["pins"].items() if n != package)
    environment = [str(fact[k]) for k in ("lane", "python", "torch")]
    why = "" if Status(fact["status"]).certain else fact["reason"]
    return (fact["status"], others, *environment, last_seen(fact), why)
