"""Run folders for the site: the newest complete run of each scenario that can be graded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import catalog
from harness.api.pictures import Picture
from harness.api.spec import BUGGY, FIXED, Records, Verdict
from harness.launch.exits import read_json
from harness.runs.grade import graded
from harness.runs.records import RUN_FILE
from harness.runs.results import RunResult
from harness.system.errors import HarnessError, UserError
from harness.system.text import complaint

Warn = Callable[[str], None]
"""Prints one line about an input that cannot be used."""


@dataclass(frozen=True)
class Shown:
    """A graded run, and its pictures."""

    folder: Path
    run: Mapping[str, Any]
    """The content of run.json."""
    result: RunResult
    pictures: tuple[Picture, ...]


def folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders in some folders; each is a run folder, or contains some.

    Raises UserError for a path that is not a folder.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"no folder {path}: name a folder of run folders with --runs")
        inside = [path] if (path / RUN_FILE).is_file() else sorted(path.iterdir())
        found += [folder for folder in inside if (folder / RUN_FILE).is_file()]
    return found


def newest(found: Iterable[Path], warn: Warn) -> dict[str, Shown]:
    """The newest complete run of each scenario, by its name."""
    shown: dict[str, Shown] = {}
    for scenario, folder in _by_age(found, warn):
        if scenario not in shown and (run := _complete(folder, warn)):
            shown[scenario] = run
    return shown


def _by_age(found: Iterable[Path], warn: Warn) -> list[tuple[str, Path]]:
    """The scenario of each run folder, with the folder; newest first."""
    started = []
    for folder in dict.fromkeys(path.resolve() for path in found):
        try:
            run = read_json(folder / RUN_FILE)
            started.append((str(run["scenario"]), str(run["started"]), folder))
        except (HarnessError, OSError, ValueError, KeyError, TypeError) as error:
            warn(f"{folder} is not the record of a run: {complaint(error)}")
    started.sort(key=lambda each: (each[1], str(each[2])), reverse=True)
    return [(scenario, folder) for scenario, _, folder in started]


def _complete(folder: Path, warn: Warn) -> Shown | None:
    """A run with records of buggy and fixed; otherwise None, with a warning if it cannot be graded
    or is inconclusive."""
    try:
        run = read_json(folder / RUN_FILE)
        if not {BUGGY, FIXED} <= set(run["trials"]):
            return None
        result, records = graded(folder)
        if result.verdict is Verdict.INCONCLUSIVE:
            raise HarnessError(result.reasons[0].splitlines()[0])
    except (HarnessError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, HarnessError) else complaint(error)
        warn(f"{folder} is not used: {why}")
        return None
    if not {BUGGY, FIXED} <= set(records):
        return None  # unsupported here: nothing to show, and nothing wrong
    return Shown(folder, run, result, tuple(_pictures(result.scenario, records, warn)))


def _pictures(name: str, records: Mapping[str, Records], warn: Warn) -> Iterator[Picture]:
    draw = getattr(catalog.load(name), "picture", None)
    if draw is None:
        return
    try:
        yield from list(draw(records))
    except Exception as error:  # a scenario's own code: its failure must not affect others
        warn(f"no picture of {name}: {complaint(error)}")
