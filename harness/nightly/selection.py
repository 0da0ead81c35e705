"""What a night asks: which releases of which packages, of each scenario. Pure functions.

A night asks what has appeared since the first night that asked, or the record, and has no certain
answer. So what one night missed, as it was killed or had no network, the next one asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from harness import catalog
from harness.config import RunConfig
from harness.spec import RELEASED, Scenario
from harness.sweep.history import Kind, Night, ReleaseResult
from harness.upstream import pins, release_days
from harness.upstream.index import Release


@dataclass(frozen=True)
class Question:
    """Whether a release has the bug of a scenario, as published."""

    scenario: str
    release: Release


def to_ask(
    scenario: str,
    releases: Mapping[str, Sequence[Release]],
    told: Sequence[ReleaseResult],
    nights: Mapping[int, Night],
    day: str,
    place: tuple[str, ...],
) -> list[Question]:
    """The questions of a scenario on ``day``; ``told`` is all that it ever said, oldest first.

    ``releases`` has those of each package that are known, ``nights`` all nights by their numbers,
    ``place`` is where it is asked, see ``cells.place``.
    """
    scope = catalog.scenario(scenario)
    found = []
    for package in scope.pins:
        there = askable(scope, releases.get(package, ()), day)
        of_package = [asked for asked in told if asked.package == package]
        found += [Question(scenario, r) for r in _unanswered(there, of_package, nights, place)]
    return found


def askable(scope: Scenario, releases: Sequence[Release], day: str) -> list[Release]:
    """The releases of a package that a scenario can ask on a day, the oldest version first."""
    there = [r for r in releases if r.day <= day and r.final and not r.yanked]
    covered = [r for r in there if pins.covers(scope, _pins(scope, r))]
    return sorted(covered, key=lambda release: Version(release.version))


def _pins(scope: Scenario, release: Release) -> dict[str, str]:
    return pins.complete(scope, {release.package: release.version})


def _unanswered(
    there: Sequence[Release],
    told: Sequence[ReleaseResult],
    nights: Mapping[int, Night],
    place: tuple[str, ...],
) -> list[Release]:
    """What never got a certain answer: of those that nobody has asked, the newest, and what has
    appeared since there were answers of this package.

    What was recorded as inconclusive on a place like this would be so again.
    """
    asked = {one.version for one in told}
    settled = {one.version for one in told if _settled(one, nights, place)}
    since = _since(told, nights)
    return [
        release
        for release in there
        if release.version not in settled
        and (
            release.version in asked
            or release is there[-1]
            or (since is not None and release.day >= since)
        )
    ]


def _settled(one: ReleaseResult, nights: Mapping[int, Night], place: tuple[str, ...]) -> bool:
    recorded_here = nights[one.night].kind is Kind.RECORDED and one.cell.place == place
    return one.cell.status.certain or recorded_here


def _since(told: Sequence[ReleaseResult], nights: Mapping[int, Night]) -> str | None:
    """The day as of which a package was first asked whole; None where it never was.

    A record was as of the day that its newest release was asked: it may be a choice of releases.
    """
    if not told:
        return None
    first = nights[told[0].night]
    if first.kind is not Kind.RECORDED:
        return first.day
    recorded = [asked for asked in told if asked.night == first.id]
    return max(recorded, key=lambda asked: Version(asked.version)).cell.date


def config(base: RunConfig, question: Question, day: str | None) -> RunConfig:
    """What asks a question: as published, the other releases as the scenario has them.

    ``day`` is a day of the past whose index is asked: dependencies are resolved as they were then.
    """
    release = question.release
    named = {release.package: release.version}
    words = [f"scenario={question.scenario}", f"variant={RELEASED}"]
    words += [f"pins.{name}={version}" for name, version in named.items()]
    date = day and _date(catalog.scenario(question.scenario), release, day)
    if date:
        words.append(f"date={date}")
    command = " ".join(["python -m harness run", *words])
    return replace(base, variants=(RELEASED,), pins=named, date=date, command=command)


def _date(scope: Scenario, release: Release, day: str) -> str | None:
    """The day to resolve for, where the usual one had not come yet."""
    python, _ = pins.here()
    chosen = pins.complete(scope, {release.package: release.version})
    usual = release_days.locked_day(scope, chosen) or release_days.settled(release.day, python)
    then = max(day, release_days.first_day(python))
    return then if then < usual else None
