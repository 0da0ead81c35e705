"""Which releases are affected: recorded in the scenarios' folders, and shown on their pages.

``affected.json`` in a scenario's folder has a cell for each combination of releases that was
tested: ``python -m harness matrix ... --record`` writes it. Never edit it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from packaging.version import Version

from harness.bugs import catalog, pins
from harness.bugs.cell import Cell, Status
from harness.system.files import write_whole, writing

FILE = "affected.json"
FIELDS = ("status", "reason", "step", "lane", "python", "torch", "date")
"""The fields of a cell in its file, besides its pins and the day of a confirmation."""

OVERLAY = re.compile(r"/\S*/site-packages/")
"""The path of an overlay on this machine, which means nothing on another one."""


def record(cells: Iterable[Cell]) -> None:
    """Add cells to the files of their scenarios; they replace older ones of the same releases.

    A certain status is never replaced by an uncertain one. Releases that a scenario no longer
    covers are removed from its file.
    """
    ordered = sorted(cells, key=lambda cell: cell.scenario)
    for scenario, of_one in itertools.groupby(ordered, key=lambda cell: cell.scenario):
        _record(scenario, of_one)


def _record(scenario: str, cells: Iterable[Cell]) -> None:
    content = of(scenario)
    for cell in cells:
        predecessor = next((old for old in content if old.pins == cell.pins), None)
        if predecessor and predecessor.status.certain and not cell.status.certain:
            continue
        content = [old for old in content if old is not predecessor] + [cell]
    scope = catalog.scenario(scenario)
    _write(scenario, sorted((c for c in content if pins.covers(scope, c.pins)), key=_order))


def of(scenario: str) -> list[Cell]:
    """The recorded cells of one scenario, oldest releases first; empty where there is no file."""
    file = catalog.folder(scenario) / FILE
    if not file.is_file():
        return []
    return [
        Cell(**{**row, "scenario": scenario, "status": Status(row["status"])})
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]


@cache
def tested_releases(package: str) -> tuple[str, ...]:
    """The releases of a package that were tested with any bug, oldest first."""
    versions = {
        cell.pins[package] for name in catalog.sound() for cell in of(name) if package in cell.pins
    }
    return tuple(sorted(versions, key=Version))


def confirm(cells: Iterable[Cell]) -> None:
    """Note in the files of their scenarios that runs of these days gave the recorded results."""
    ordered = sorted(cells, key=lambda cell: cell.scenario)
    for scenario, of_one in itertools.groupby(ordered, key=lambda cell: cell.scenario):
        days = {tuple(sorted(cell.pins.items())): cell.date for cell in of_one}
        content = []
        for cell in of(scenario):
            day = days.get(tuple(sorted(cell.pins.items())), "")
            content.append(replace(cell, confirmed=day) if day > cell.last_seen else cell)
        _write(scenario, content)


def _write(scenario: str, cells: Sequence[Cell]) -> None:
    file = catalog.folder(scenario) / FILE
    with writing(file, "checkout"):
        write_whole(file, json.dumps([_entry(cell) for cell in cells], indent=1) + "\n")


def reason(cell: Cell) -> str:
    """The reason of a cell as it is recorded: its first line, without paths of this machine."""
    return OVERLAY.sub("", (cell.reason.splitlines() or [""])[0])


def _entry(cell: Cell) -> dict[str, Any]:
    fields = cell.to_json()
    confirmed = {"confirmed": cell.confirmed} if cell.confirmed else {}
    selection = {name: fields[name] for name in FIELDS} | {"reason": reason(cell)}
    return {"pins": dict(cell.pins)} | selection | confirmed


def _order(cell: Cell) -> list[Version]:
    return [Version(version) for version in cell.pins.values()]
