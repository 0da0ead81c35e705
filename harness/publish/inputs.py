"""The inputs of the site: the statuses of releases, the nightlies, the runs.

The statuses come from the newest certain results of a history; without one, from ``affected.json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from harness import catalog
from harness.nightly.history import History, reading
from harness.nightly.history import recorded_results as recorded_results
from harness.nightly.history_rows import Change, Kind, Nightly, ReleaseResult, ScenarioResult
from harness.publish import shown_runs
from harness.publish.shown_runs import Shown, Warn
from harness.ranges.lookup import Lookup, infer
from harness.runs import evidence
from harness.upstream.index import Release


@dataclass(frozen=True)
class Statuses:
    """All results of releases, and the days of releases."""

    results: tuple[ReleaseResult, ...]
    releases: tuple[Release, ...] = ()
    """Every release in the history; empty without a history."""
    _by: dict[tuple[str, str], dict[str, ReleaseResult]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for each in sorted(self.results, key=lambda result: Version(result.version)):
            self._by.setdefault((each.cell.scenario, each.package), {})[each.version] = each

    @cached_property
    def days(self) -> Mapping[tuple[str, str], str]:
        """The day (ISO) of releases, by package and version, if known."""
        return {(release.package, release.version): release.day for release in self.releases}

    def packages(self, scenario: str | None = None) -> list[str]:
        """The packages with tested releases, of one scenario or of all; sorted."""
        return sorted({package for name, package in self._by if scenario in (None, name)})

    def scenarios(self, package: str) -> list[str]:
        """The scenarios with tested releases of a package; sorted."""
        return sorted({name for name, of in self._by if of == package})

    def of(self, scenario: str, package: str) -> Mapping[str, ReleaseResult]:
        """The results of a scenario by version, lowest first."""
        return self._by.get((scenario, package), {})

    def versions(self, package: str) -> list[str]:
        """Every tested release of a package, lowest first."""
        found = [results for (_, of), results in self._by.items() if of == package]
        return sorted({version for results in found for version in results}, key=Version)

    def untested(self, scenario: str, package: str) -> Iterator[Release]:
        """The releases in the history that were never tested for the scenario."""
        tested = self.of(scenario, package)
        for release in self.releases:
            if release.package == package and release.version not in tested:
                yield release

    def known(self, scenario: str, package: str, version: str) -> Lookup:
        """The status of a release: its own, otherwise from its neighbours, see ``infer``."""
        results = self.of(scenario, package)
        if version in results:
            own = results[version]
            how = f"tested on {own.cell.date}{own.with_others}"
            return Lookup(own.cell.status, how, tested=True)
        return infer(((each, result.cell.status) for each, result in results.items()), version)

    def others(self, scenario: str, package: str) -> str:
        """The releases of the bug's own package that another package was tested with, if they were
        always the same: ``with transformers 4.36.2``."""
        others = {result.others for result in self.of(scenario, package).values()}
        own = next(iter(catalog.scenario(scenario).pins), package)
        return f"with {others.pop()}" if own != package and len(others) == 1 else ""

    def newest(self, scenario: str, package: str) -> ReleaseResult | None:
        """The result of a package's highest release with a certain status; None without one."""
        certain = [each for each in self.of(scenario, package).values() if each.cell.status.certain]
        return certain[-1] if certain else None


def recorded_statuses() -> Statuses:
    """The results that come with the harness: the scenarios' ``affected.json``."""
    return Statuses(tuple(recorded_results()))


def statuses_of(history: History) -> Statuses:
    """The results of a history: for each release the newest certain one, otherwise the newest."""
    known = [result for name in catalog.sound() for result in history.known(name).values()]
    return Statuses(tuple(known), tuple(history.releases()))


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
    found = shown_runs.folders(paths)
    with ExitStack() as held:
        past = held.enter_context(reading(history)) if history else None
        known = statuses_of(past) if past else recorded_statuses()
        nightlies = tuple(_nightlies(past)) if past else ()
    for name, why in catalog.broken().items():
        warn(f"{name} is not shown: {why}")
    shown = shown_runs.newest([*_of_newest(nightlies, warn), *found], warn)
    with ExitStack() as held:
        missing = [name for name in catalog.sound() if name not in shown]
        recorded = [held.enter_context(evidence.recorded(name)) for name in missing]
        shown |= shown_runs.newest(filter(None, recorded), warn)
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
