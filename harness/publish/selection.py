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
from harness.publish.history_rows import Nightly, NightlyKind, ReleaseResult
from harness.releases.index import Release
from harness.releases.sources import Source
from harness.run.run_config import RunConfig


@dataclass(frozen=True)
class ReleaseTest:
    """One release to test, as published, for one scenario."""

    scenario: str
    release: Release


def tests_of(
    scenario: str,
    releases: Mapping[str, Sequence[Release]],
    results: Sequence[ReleaseResult],
    nightlies: Mapping[int, Nightly],
    day: str,
    platform: tuple[str, ...],
) -> list[ReleaseTest]:
    """The tests of a scenario on ``day``; ``results`` has all of its results, oldest first.

    ``releases`` has the known releases of each package, ``nightlies`` all nightlies by number, and
    ``platform`` says where the tests run, see ``cells.platform_here``.
    """
    scope = catalog.scenario(scenario)
    tests = []
    for package in scope.pins:
        testable_ = testable(scope, releases.get(package, ()), day)
        of_package = [result for result in results if result.package == package]
        untested = _uncertain(testable_, of_package, nightlies, platform)
        tests += [ReleaseTest(scenario, release) for release in untested]
    return tests


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
    results: Sequence[ReleaseResult],
    nightlies: Mapping[int, Nightly],
    platform: tuple[str, ...],
) -> list[Release]:
    """The releases without a certain result that were tested, are the highest one, or appeared
    since the package's first results.

    A release that is recorded as inconclusive on this platform would be inconclusive again.
    """
    tested = {result.version for result in results}
    settled = {result.version for result in results if _settled(result, nightlies, platform)}
    since = _since(results, nightlies)
    return [
        release
        for release in testable
        if release.version not in settled
        and (
            release.version in tested
            or release is testable[-1]
            or (since is not None and release.day >= since)
        )
    ]


def _settled(
    result: ReleaseResult, nightlies: Mapping[int, Nightly], platform: tuple[str, ...]
) -> bool:
    """Whether another run would give the same status. What this Python cannot install today, it
    cannot install tomorrow, except for torch, which the user may install."""
    recorded = nightlies[result.nightly].kind is NightlyKind.RECORDED
    unsupported = result.cell.status is Status.UNSUPPORTED and result.package != pins.TORCH
    ran_here = result.cell.platform == platform
    return result.cell.status.certain or (ran_here and (recorded or unsupported))


def _since(results: Sequence[ReleaseResult], nightlies: Mapping[int, Nightly]) -> str | None:
    """The day of a package's first results; None without results.

    Recorded results may cover only some releases: their day is when the highest was tested.
    """
    if not results:
        return None
    first_nightly = nightlies[results[0].nightly]
    if first_nightly.kind is not NightlyKind.RECORDED:
        return first_nightly.day
    recorded = [result for result in results if result.nightly == first_nightly.id]
    return max(recorded, key=lambda result: Version(result.version)).cell.first_day


def config(base: RunConfig, test: ReleaseTest) -> RunConfig:
    """The config of a test: the release as published, the other pins as the scenario has them."""
    package, version = test.release.package, test.release.version
    words = [f"scenario={test.scenario}", f"variant={RELEASED}", f"pins.{package}={version}"]
    command = " ".join(["python -m harness run", *words])
    return replace(base, variants=(RELEASED,), pins={package: version}, command=command)
