"""All that the site is made from: what is known of releases, the nights, the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from harness import catalog
from harness.site import runs, statuses
from harness.site.runs import Shown, Tell
from harness.site.statuses import Answers
from harness.sweep.history import Change, History, Kind, Night, Own, ReleaseResult, reading


@dataclass(frozen=True)
class Nightly:
    """A night, and all that it brought."""

    night: Night
    own: tuple[Own, ...]
    asked: tuple[ReleaseResult, ...]
    changes: tuple[Change, ...]
    name: str
    """Its day (ISO), with the time (UTC) it was begun where that day had several."""

    @property
    def seconds(self) -> float:
        """What its runs took, in seconds of wall clock, one after another."""
        fresh = [asked.cell.seconds for asked in self.asked if not asked.cell.stored]
        return sum(fresh) + sum(own.seconds for own in self.own)


@dataclass(frozen=True)
class Material:
    """What the pages tell."""

    answers: Answers
    nights: tuple[Nightly, ...]
    """The oldest first; what was recorded before the first one is none."""
    history: Path | None
    shown: dict[str, Shown]
    """The newest whole run of a scenario, by its name."""


def collect(history: Path | None, places: Sequence[Path], tell: Tell) -> Material:
    """Read all there is; ``tell`` hears of each thing that is of no use, in one line.

    Raises what ``history.reading`` does, and UserError for a place of runs that is no folder.
    """
    found = runs.folders(places)
    with ExitStack() as held:
        past = held.enter_context(reading(history)) if history else None
        known = statuses.of(past) if past else statuses.recorded()
        nights = tuple(_nights(past)) if past else ()
    for name, why in catalog.broken().items():
        tell(f"not shown, {name}: {why}")
    shown = runs.newest([*_of_newest(nights, tell), *found], tell)
    return Material(known, nights, history, shown)


def _nights(history: History) -> list[Nightly]:
    changes: dict[int, list[Change]] = {}
    for number, change in history.changes():
        changes.setdefault(number, []).append(change)
    nights = [night for night in history.nights() if night.kind is not Kind.RECORDED]
    days = Counter(night.day for night in nights)
    return [
        Nightly(
            night,
            tuple(history.verdicts(night.id)),
            tuple(history.answers(night.id)),
            tuple(changes.get(night.id, ())),
            night.day if days[night.day] == 1 else f"{night.day} {night.started[11:16]}",
        )
        for night in nights
    ]


def _of_newest(nights: Sequence[Nightly], tell: Tell) -> list[Path]:
    """The run folders that the newest night with any names, less those that are gone."""
    named = next((n.own for n in reversed(nights) if any(own.run for own in n.own)), ())
    folders = [Path(own.run) for own in named if own.run]
    for folder in folders:
        if not folder.is_dir():
            tell(f"no longer there, of the newest night: {folder}")
    return [folder for folder in folders if folder.is_dir()]
