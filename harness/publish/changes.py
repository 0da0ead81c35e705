"""What changed: each result compared with the release before it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from harness.bugs import catalog
from harness.bugs.api.spec import Verdict
from harness.bugs.pins import is_source
from harness.bugs.results import Status
from harness.publish.history import WORSE, Change, ReleaseResult, newest_certain, why
from harness.releases.index import Release
from harness.run.suite import Done
from harness.system.text import short

NOW_AFFECTED, NO_LONGER_CERTAIN, NO_LONGER_REPRODUCES = WORSE
NO_LONGER_AFFECTED = "no longer affected"

SEE = "To see it: "
"""The words before the command that shows a change."""

Releases = Mapping[tuple[str, str], Release]
"""Releases by package and version."""


def of_releases(
    tonight: Sequence[ReleaseResult], before: Sequence[ReleaseResult], releases: Releases, day: str
) -> list[Change]:
    """The changes in the results of a nightly; ``before`` has all earlier ones, oldest first.

    A release is compared with the nearest lower version of its package that has a result for the
    same scenario. So a late patch of an old branch is compared within its branch.
    """
    newest_results = newest_certain([*before, *tonight])
    earlier = newest_certain(before)
    changes = []
    for result in sorted(tonight, key=_order):
        lower = _lower(result, newest_results.values(), earlier.values())
        if comparison := _comparison(result, earlier.get(result.key), lower):
            changes.append(_change(*comparison, result, releases, day))
    return changes


def _order(result: ReleaseResult) -> tuple[str, str, Version]:
    return result.cell.scenario, result.package, Version(result.version)


def _lower(
    result: ReleaseResult, results: Iterable[ReleaseResult], earlier: Iterable[ReleaseResult]
) -> list[ReleaseResult]:
    """The results of lower releases for the same scenario and package, nearest first. For a source,
    the sources of earlier nightlies come before them, newest first."""
    scenario, package, version = _order(result)
    releases = [
        one
        for one in results
        if one.key[:2] == (scenario, package)
        and not is_source(one.version)
        and Version(one.version) < version
    ]
    sources = [
        one
        for one in earlier
        if is_source(result.version)
        and one.key[:2] == (scenario, package)
        and is_source(one.version)
        and one.key != result.key
    ]
    return [*reversed(sources), *sorted(releases, key=_order, reverse=True)]


def _comparison(
    result: ReleaseResult, previous: ReleaseResult | None, lower: Sequence[ReleaseResult]
) -> tuple[str, ReleaseResult] | None:
    """The kind of a change, and the result that it is compared with; None without a change."""
    status = result.cell.status
    certain = next((one for one in lower if one.cell.status.certain), None)
    if certain is None or status is Status.UNSUPPORTED:
        return None
    if not status.certain:  # reported once
        is_news = previous is None and lower[0] is certain
        return (NO_LONGER_CERTAIN, certain) if is_news else None
    if certain.cell.status is not status:
        return NOW_AFFECTED if status is Status.AFFECTED else NO_LONGER_AFFECTED, certain
    return None


def _change(
    kind: str, reference: ReleaseResult, result: ReleaseResult, releases: Releases, day: str
) -> Change:
    cell, bug, status = result.cell, result.cell.scenario, result.cell.status
    scenario, release = catalog.scenario(bug), releases.get((result.package, result.version))
    name = f"{result.package} {result.version}" + (f" ({release.day})" if release else "")
    was = f"{reference.version} was {reference.cell.status}."
    reason = (short(cell.reason, 160) or "none was given").removesuffix(".")
    message = {
        NOW_AFFECTED: f"{name} is affected by {bug}; {reference.version} was not. "
        f"{scenario.title[:1].upper()}{scenario.title[1:]}. Only with {scenario.trigger}. "
        f"What to do: {scenario.remedy or f'use {result.package} {reference.version}'}. First "
        f"seen in the nightly of {day}.",
        NO_LONGER_AFFECTED: f"{name} is not affected by {bug}; {reference.version} was.",
        NO_LONGER_CERTAIN: f"{name} is {status} for {bug}; {was} Reason: {reason}. Until a run "
        f"succeeds, it is not known whether this release has the bug: {scenario.title}. First "
        f"seen in the nightly of {day}.",
    }[kind]
    return Change(
        kind,
        bug,
        result.package,
        result.version,
        str(reference.cell.status),
        str(status),
        f"{message} {SEE}python -m harness run scenario={bug} variant=released "
        f"pins.{result.package}={result.version}",
    )


def of_ours(tonight: Iterable[Done], before: Sequence[Done], day: str) -> list[Change]:
    """Which of our scenarios no longer reproduce.

    ``before`` has the runs of earlier nightlies. A scenario without an earlier run counts as
    reproduced, since the catalogue has only scenarios that reproduce.
    Inconclusive and unsupported verdicts do not count.
    """
    clear = (Verdict.REPRODUCED, Verdict.NOT_REPRODUCED)
    changes = []
    for result in (done.result for done in tonight):
        name, verdict = result.scenario, result.verdict
        earlier = [old.result.verdict for old in before if old.result.scenario == name]
        last = next((v for v in reversed(earlier) if v in clear), Verdict.REPRODUCED)
        if verdict is Verdict.NOT_REPRODUCED and last is Verdict.REPRODUCED:
            message = (
                f"{name} no longer reproduces on the releases that it pins: "
                f"{why(result) or 'see its run'}. These releases did not change, so torch, the "
                f"machine or this harness did. First seen in the nightly of {day}. "
                f"{SEE}python -m harness run scenario={name}"
            )
            changes.append(
                Change(NO_LONGER_REPRODUCES, name, None, None, str(last), str(verdict), message)
            )
    return changes
