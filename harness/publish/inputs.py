"""The inputs of the site: the statuses of releases, the nightlies, the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from harness import catalog
from harness.nightly.history import History, reading
from harness.nightly.history_rows import Change, Kind, Nightly, ReleaseResult, ScenarioResult
from harness.publish import runs, statuses
from harness.publish.runs import Shown, Warn
from harness.publish.statuses import Statuses
from harness.runs import evidence


@dataclass(frozen=True)
class NightlyResults:
    """A nightly with its results and changes."""

    nightly: Nightly
    own: tuple[ScenarioResult, ...]
    results: tuple[ReleaseResult, ...]
    changes: tuple[Change, ...]
    name: str
    """Its day (ISO), with its start time (UTC) if that day had several."""

    @property
    def seconds(self) -> float:
        """The sum of the wall seconds of its runs."""
        fresh = [result.cell.seconds for result in self.results if not result.cell.stored]
        return sum(fresh) + sum(own.seconds for own in self.own)


@dataclass(frozen=True)
class Material:
    """The content of the pages."""

    statuses: Statuses
    nightlies: tuple[NightlyResults, ...]
    """Oldest first, without the recorded results."""
    history: Path | None
    shown: dict[str, Shown]
    """The newest complete run of each scenario, by its name, or the recorded one."""


def collect(history: Path | None, paths: Sequence[Path], warn: Warn) -> Material:
    """Read all inputs; ``warn`` gets one line for each that cannot be used.

    Raises the errors of ``history.reading``, and UserError if a path of runs is not a folder.
    """
    found = runs.folders(paths)
    with ExitStack() as held:
        past = held.enter_context(reading(history)) if history else None
        known = statuses.of(past) if past else statuses.recorded()
        nightlies = tuple(_nightlies(past)) if past else ()
    for name, why in catalog.broken().items():
        warn(f"{name} is not shown: {why}")
    shown = runs.newest([*_of_newest(nightlies, warn), *found], warn)
    with ExitStack() as held:
        missing = [name for name in catalog.sound() if name not in shown]
        recorded = [held.enter_context(evidence.recorded(name)) for name in missing]
        shown |= runs.newest(filter(None, recorded), warn)
    return Material(known, nightlies, history, shown)


def _nightlies(history: History) -> list[NightlyResults]:
    changes: dict[int, list[Change]] = {}
    for number, change in history.changes():
        changes.setdefault(number, []).append(change)
    nightlies = [each for each in history.nightlies() if each.kind is not Kind.RECORDED]
    days = Counter(each.day for each in nightlies)
    return [
        NightlyResults(
            each,
            tuple(history.verdicts(each.id)),
            tuple(history.results(each.id)),
            tuple(changes.get(each.id, ())),
            each.day if days[each.day] == 1 else f"{each.day} {each.started[11:16]}",
        )
        for each in nightlies
    ]


def _of_newest(nightlies: Sequence[NightlyResults], warn: Warn) -> list[Path]:
    """The run folders of the newest nightly that has any, without those that were deleted."""
    named = next((n.own for n in reversed(nightlies) if any(own.run for own in n.own)), ())
    folders = [Path(own.run) for own in named if own.run]
    for folder in folders:
        if not folder.is_dir():
            warn(f"a run folder of the newest nightly was deleted: {folder}")
    return [folder for folder in folders if folder.is_dir()]
