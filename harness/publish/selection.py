"""Selects the releases that a nightly tests, for each scenario. Pure functions.

A nightly tests the releases without a certain result that appeared since the package's first
nightly or recorded result. So the next nightly tests what one missed, killed or without a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from harness.bugs import catalog, pins
from harness.bugs.api.spec import RELEASED, Scenario
from harness.bugs.results import Status
from harness.publish.history import Nightly, ReleaseResult
from harness.releases.index import Release
from harness.releases.sources import Source
from harness.run.run_config import RunConfig


@dataclass(frozen=True)
class ReleaseTest:
    """One release to test, as published, for one scenario."""

    scenario: str
    release: Release

    def __str__(self) -> str:
        release = self.release
        return f"{release.package} {release.version} ({release.day}), {self.scenario}"


def tests_of(
    scenario: str,
    releases: Mapping[str, Sequence[Release]],
    recorded: Sequence[ReleaseResult],
    nightlies: Sequence[Nightly],
    day: str,
    platform: tuple[str, ...],
) -> list[ReleaseTest]:
    """The tests of a scenario on ``day``.

    ``releases`` has the known releases of each package, ``recorded`` all recorded results, and
    ``platform`` says where the tests run, see ``cells.platform_here``.
    """
    scope = catalog.scenario(scenario)
    return [
        ReleaseTest(scenario, release)
        for package in scope.pins
        for release in _uncertain(
            testable(scope, releases.get(package, ()), day),
            [each for each in recorded if each.key[:2] == (scenario, package)],
            [
                (nightly.day, each)
                for nightly in nightlies
                for each in nightly.results
                if each.key[:2] == (scenario, package)
            ],
            platform,
        )
    ]


def of_source(source: Source, scenarios: Iterable[str]) -> list[ReleaseTest]:
    """The tests of a source, one for each bug of its package that it can be tested for."""
    release = Release(source.name, source.version, source.day)
    return [
        ReleaseTest(name, release)
        for name in scenarios
        if catalog.subject(name) == source.name
        and pins.covers(catalog.scenario(name), _pins(catalog.scenario(name), release))
    ]


def testable(scope: Scenario, releases: Sequence[Release], day: str) -> list[Release]:
    """The releases of a package that a scenario can test on a day, lowest version first."""
    final = [r for r in releases if r.day <= day and r.final and not r.yanked]
    final = [r for r in final if not pins.is_source(r.version)]
    covered = [r for r in final if pins.covers(scope, _pins(scope, r))]
    return sorted(covered, key=lambda release: Version(release.version))


def _pins(scope: Scenario, release: Release) -> dict[str, str]:
    return pins.complete(scope, {release.package: release.version})


def _uncertain(
    testable: Sequence[Release],
    recorded: Sequence[ReleaseResult],
    results: Sequence[tuple[str, ReleaseResult]],
    platform: tuple[str, ...],
) -> list[Release]:
    """The releases without a certain result that were tested, are the highest one, or appeared
    since the package's first results. ``results`` are those of nightlies, with their days.

    Another run would give the same status if that is certain, and for a release that is recorded as
    inconclusive on this platform. What this Python cannot install today, it cannot install
    tomorrow, except for torch, which the user may install.
    """
    settled = {each.version for each in recorded if _settled(each, platform, *Status)}
    settled |= {
        each.version
        for _, each in results
        if _settled(each, platform, *(() if each.package == pins.TORCH else [Status.UNSUPPORTED]))
    }
    tested = {each.version for each in recorded} | {each.version for _, each in results}
    days = [day for day, _ in results[:1]]
    if recorded:  # maybe only some releases: until the highest was tested
        days.append(max(recorded, key=lambda each: Version(each.version)).cell.first_day)
    return [
        release
        for release in testable
        if release.version not in settled
        and (
            release.version in tested
            or release is testable[-1]
            or (days and release.day >= min(days))
        )
    ]


def _settled(result: ReleaseResult, platform: tuple[str, ...], *here: Status) -> bool:
    """Whether a result has a certain status, or one of these on this platform."""
    status = result.cell.status
    return status.certain or (status in here and result.cell.platform == platform)


def config(base: RunConfig, test: ReleaseTest) -> RunConfig:
    """The config of a test: the release as published, the other pins as the scenario has them."""
    package, version = test.release.package, test.release.version
    words = [f"scenario={test.scenario}", f"variant={RELEASED}", f"pins.{package}={version}"]
    command = " ".join(["python -m harness run", *words])
    return replace(base, variants=(RELEASED,), pins={package: version}, command=command)
