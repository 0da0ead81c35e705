"""The results of each bug: ``results.jsonl`` in its scenario's folder, a line for each trial.

Commands append lines and change none: ``matrix ... --record`` and ``bisect ... --record`` append
the results of releases, ``confirm --record`` those of repeated runs, and ``evidence`` the trials of
a run on GPUs. What is known of a bug follows from all lines; never edit them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
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
    file = catalog.folder(scenario) / FILE
    try:
        status = file.stat()
    except FileNotFoundError:
        return ()
    return _parsed(file, status.st_mtime_ns, status.st_size)


@cache
def _parsed(file: Path, _changed: int, _size: int) -> tuple[Result, ...]:
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
    by_releases: dict[frozenset[tuple[str, str]], Result] = {}
    for result in read(scenario):
        if result.variant != RELEASED or result.label:
            continue
        key = frozenset(result.pins.items())
        earlier = by_releases.get(key)
        if earlier and earlier.status.certain and not result.status.certain:
            continue
        repeated = earlier and (earlier.status, earlier.platform) == (
            result.status,
            result.platform,
        )
        since = earlier.first_day if earlier and repeated else ""
        by_releases[key] = replace(result, since=since) if since else result
    scope = catalog.scenario(scenario)
    covered = [result for result in by_releases.values() if pins.covers(scope, result.pins)]
    return sorted(covered, key=lambda result: [_version(v) for v in result.pins.values()])


@cache
def _version(text: str) -> Version:
    return Version(text)


@cache
def tested_releases(package: str) -> tuple[str, ...]:
    """The releases of a package that were tested with any bug, oldest first."""
    versions = {
        cell.pins[package]
        for name in catalog.sound()
        for cell in statuses(name)
        if package in cell.pins
    }
    return tuple(sorted(versions, key=Version))


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
