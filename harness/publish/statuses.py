"""The status of each release for each bug, for the site's pages.

It comes from the newest certain results of a history; without one, from ``affected.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.version import Version

from harness import catalog
from harness.nightly.baseline import recorded as recorded_results
from harness.nightly.history import History
from harness.nightly.history_rows import ReleaseResult
from harness.ranges.lookup import Lookup, infer
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


def recorded() -> Statuses:
    """The results that come with the harness: the scenarios' ``affected.json``."""
    return Statuses(tuple(recorded_results()))


def of(history: History) -> Statuses:
    """The results of a history: for each release the newest certain one, otherwise the newest."""
    known = [result for name in catalog.sound() for result in history.known(name).values()]
    return Statuses(tuple(known), tuple(history.releases()))
