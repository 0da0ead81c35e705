"""Run folders for the site: of each scenario the newest whole one that grades."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import catalog
from harness.errors import HarnessError, UserError
from harness.pictures import Picture
from harness.results import RunResult
from harness.spec import BUGGY, FIXED, Records, Verdict
from harness.text import complaint
from harness.trial.grade import graded
from harness.trial.records import RUN_FILE, read_json

Tell = Callable[[str], None]
"""Says in one line what could not be used."""


@dataclass(frozen=True)
class Shown:
    """A run that grades, and the pictures of it."""

    folder: Path
    run: Mapping[str, Any]
    """The content of run.json."""
    result: RunResult
    pictures: tuple[Picture, ...]


def folders(places: Iterable[Path]) -> list[Path]:
    """The run folders at some places, each of which is one itself or holds some.

    Raises UserError for a place that is no folder.
    """
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise UserError(f"no folder {place}: name one of run folders with --runs")
        inside = [place] if (place / RUN_FILE).is_file() else sorted(place.iterdir())
        found += [folder for folder in inside if (folder / RUN_FILE).is_file()]
    return found


def newest(found: Iterable[Path], tell: Tell) -> dict[str, Shown]:
    """The newest whole run of each scenario, by its name; ``tell`` hears of those of no use."""
    shown: dict[str, Shown] = {}
    for scenario, folder in _by_age(found, tell):
        if scenario not in shown and (run := _whole(folder, tell)):
            shown[scenario] = run
    return shown


def _by_age(found: Iterable[Path], tell: Tell) -> list[tuple[str, Path]]:
    """Of which scenario each run folder is; the newest first."""
    told = []
    for folder in dict.fromkeys(path.resolve() for path in found):
        try:
            run = read_json(folder / RUN_FILE)
            told.append((str(run["scenario"]), str(run["started"]), folder))
        except (HarnessError, OSError, ValueError, KeyError, TypeError) as error:
            tell(f"{folder} is not the record of a run: {complaint(error)}")
    told.sort(key=lambda each: (each[1], str(each[2])), reverse=True)
    return [(scenario, folder) for scenario, _, folder in told]


def _whole(folder: Path, tell: Tell) -> Shown | None:
    """A run in which buggy and fixed both said something; None for another, which is told of
    where it should have."""
    try:
        run = read_json(folder / RUN_FILE)
        if not {BUGGY, FIXED} <= set(run["trials"]):
            return None
        result, records = graded(folder)
        if result.verdict is Verdict.INCONCLUSIVE:
            raise HarnessError(result.reasons[0].splitlines()[0])
    except (HarnessError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, HarnessError) else complaint(error)
        tell(f"not used, {folder}: {why}")
        return None
    if not {BUGGY, FIXED} <= set(records):
        return None  # unsupported here: nothing to be seen, and nothing wrong
    return Shown(folder, run, result, tuple(_pictures(result.scenario, records, tell)))


def _pictures(name: str, records: Mapping[str, Records], tell: Tell) -> Iterator[Picture]:
    draw = getattr(catalog.load(name), "picture", None)
    if draw is None:
        return
    try:
        yield from list(draw(records))
    except Exception as error:  # a scenario's own code: it spoils its picture, and no other's
        tell(f"no picture of {name}: {complaint(error)}")
