"""The results of each bug: ``results.jsonl`` in its scenario's folder, a line for each trial.

Commands append lines and change none: ``matrix ... --record`` and ``bisect ... --record`` append
the results of releases, ``confirm --record`` those of repeated runs, and ``evidence`` the trials of
a run on GPUs. What is known of a bug follows from all lines; never edit them.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from packaging.version import Version

from harness.bugs import catalog, pins
from harness.bugs.api.spec import RELEASED
from harness.bugs.results import Result
from harness.system import lines
from harness.system.files import writing

FILE = "results.jsonl"

OVERLAY = re.compile(r"/\S*/site-packages/")
"""The path of an overlay on this machine, which means nothing on another one."""


def append(results: Iterable[Result]) -> None:
    """Append results to the files of their scenarios."""
    ordered = sorted(results, key=lambda result: result.scenario)
    for scenario, group in itertools.groupby(ordered, key=lambda result: result.scenario):
        file = catalog.folder(scenario) / FILE
        with writing(file, "checkout"):
            lines.append(file, [result.to_json() for result in group])


def read(scenario: str) -> tuple[Result, ...]:
    """Every result of a scenario, in the order of the file; empty where there is no file."""
    return _parse(*_stamp(scenario))


def _stamp(scenario: str) -> tuple[Path, int, int]:
    """The file of a scenario, with when it was changed and its size: it is parsed once for each."""
    file = catalog.folder(scenario) / FILE
    try:
        status = file.stat()
    except FileNotFoundError:
        return file, 0, 0
    return file, status.st_mtime_ns, status.st_size


@cache
def _parse(file: Path, _changed: int, _size: int) -> tuple[Result, ...]:
    return tuple(map(Result.from_json, lines.read(file)))


def record(cells: Iterable[Result]) -> None:
    """Append results of releases, without what only this machine can use."""
    append(
        replace(
            cell,
            reason=portable(cell.reason),
            finding=cell.finding and replace(cell.finding, message=portable(cell.finding.message)),
            failure=None,
            folder=None,
            log=(),
            stored=False,
        )
        for cell in cells
    )


def portable(reason: str) -> str:
    """A reason as it is recorded: its first line, without paths of this machine."""
    return OVERLAY.sub("", (reason.splitlines() or [""])[0])


def statuses(scenario: str) -> list[Result]:
    """The result of each combination of releases that was tested, oldest releases first: the newest
    certain one, otherwise the newest. Releases that the scenario no longer covers are left out."""
    return list(_statuses(*_stamp(scenario), catalog.scenario(scenario).releases))


@cache
def _statuses(file: Path, changed: int, size: int, releases: str) -> tuple[Result, ...]:
    by_releases: dict[frozenset[tuple[str, str]], Result] = {}
    for result in _parse(file, changed, size):
        if result.variant != RELEASED or result.label:
            continue
        key = frozenset(result.pins.items())
        predecessor = by_releases.get(key)
        if predecessor and predecessor.status.certain and not result.status.certain:
            continue
        if predecessor and result.repeats(predecessor):
            by_releases[key] = replace(result, since=predecessor.first_day)
        else:
            by_releases[key] = result
    cells = [r for r in by_releases.values() if not releases or pins.matches(releases, r.pins)]
    return tuple(sorted(cells, key=lambda cell: [_number(v) for v in cell.pins.values()]))


def by_point(
    scenario: str, packages: tuple[str, ...]
) -> Mapping[tuple[Version, ...], Sequence[Result]]:
    """The results of ``statuses`` by the releases of these packages."""
    return _by_point(*_stamp(scenario), catalog.scenario(scenario).releases, packages)


@cache
def _by_point(
    file: Path, changed: int, size: int, releases: str, packages: tuple[str, ...]
) -> Mapping[tuple[Version, ...], Sequence[Result]]:
    points: dict[tuple[Version, ...], list[Result]] = {}
    for cell in _statuses(file, changed, size, releases):
        points.setdefault(tuple(_number(cell.pins[p]) for p in packages), []).append(cell)
    return points


@cache
def _number(text: str) -> Version:
    return Version(text)


@cache
def tested_releases(package: str) -> tuple[str, ...]:
    """The releases of a package that were tested with any bug, oldest first."""
    return tuple(sorted(_tested()[package], key=_number))


@cache
def _tested() -> Mapping[str, set[str]]:
    versions: dict[str, set[str]] = defaultdict(set)
    for name in catalog.sound():
        for cell in statuses(name):
            for package, version in cell.pins.items():
                versions[package].add(version)
    return versions


def kept_runs(scenario: str) -> dict[str, list[Result]]:
    """The trials of each run that is kept as evidence, by its label; the newest run first. A run
    replaces an earlier one with its label."""
    by_run: dict[tuple[str, str], list[Result]] = {}
    for result in read(scenario):
        if result.label:
            by_run.setdefault((result.label, result.run), []).append(result)
    newest: dict[str, list[Result]] = {}
    for (label, _), trials in reversed(by_run.items()):
        newest.setdefault(label, trials)
    return newest
