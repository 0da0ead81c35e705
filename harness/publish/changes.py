"""What changed: each result compared with the release before it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from harness.bugs import catalog
from harness.bugs.api.spec import Verdict
from harness.bugs.pins import is_source
from harness.bugs.results import Status
from harness.publish.history import Change, ReleaseResult, newest_certain, why
from harness.releases.index import Release
from harness.run.suite import Done
from harness.system.text import short

NOW_AFFECTED = "now affected"
NO_LONGER_AFFECTED = "no longer affected"
NO_LONGER_CERTAIN = "no longer certain"
UNSUPPORTED_HERE = "unsupported here"
CERTAIN_AGAIN = "certain again"
NO_LONGER_REPRODUCES = "no longer reproduces"
REPRODUCES_AGAIN = "reproduces again"
YANKED = "yanked"
UNLIKE_ITS_RECORD = "unlike its record"

WORSE = frozenset({NOW_AFFECTED, NO_LONGER_CERTAIN, NO_LONGER_REPRODUCES, UNLIKE_ITS_RECORD})
"""The changes that end a nightly with exit code 1."""

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
        previous = earlier.get(result.key)
        lower = _lower(result, newest_results.values(), earlier.values())
        if kind := _kind(result, previous, lower):
            reference = _reference(kind, previous, lower)
            changes.append(_change(kind, result, reference, releases, day))
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


def _kind(
    result: ReleaseResult, previous: ReleaseResult | None, lower: Sequence[ReleaseResult]
) -> str | None:
    """The kind of a change; None without a change, or without a result to compare with."""
    if not result.cell.status.certain:
        if previous is not None or not _nearest_is_certain(lower):
            return None  # reported before, or no change
        unsupported = result.cell.status is Status.UNSUPPORTED
        return UNSUPPORTED_HERE if unsupported else NO_LONGER_CERTAIN
    reference = next((one for one in lower if one.cell.status.certain), None)
    if reference and reference.cell.status is not result.cell.status:
        return NOW_AFFECTED if result.cell.status is Status.AFFECTED else NO_LONGER_AFFECTED
    was_unknown = (previous and not previous.cell.status.certain) or (
        lower and not _nearest_is_certain(lower)
    )
    return CERTAIN_AGAIN if was_unknown else None


def _nearest_is_certain(lower: Sequence[ReleaseResult]) -> bool:
    return bool(lower) and lower[0].cell.status.certain


def _reference(
    kind: str, previous: ReleaseResult | None, lower: Sequence[ReleaseResult]
) -> ReleaseResult:
    """The result that a changed one is compared with."""
    if kind == CERTAIN_AGAIN:
        return previous if previous and not previous.cell.status.certain else lower[0]
    return next(one for one in lower if one.cell.status.certain)


def _change(
    kind: str, result: ReleaseResult, reference: ReleaseResult, releases: Releases, day: str
) -> Change:
    cell = result.cell
    return Change(
        kind,
        cell.scenario,
        result.package,
        result.version,
        str(reference.cell.status),
        str(cell.status),
        f"{_message(kind, result, reference, _name(result, releases), day)} {SEE}{command(result)}",
    )


def _message(
    kind: str, result: ReleaseResult, reference: ReleaseResult, name: str, day: str
) -> str:
    scenario = catalog.scenario(result.cell.scenario)
    bug, status, version = result.cell.scenario, result.cell.status, reference.version
    was = f"{version} was {reference.cell.status}."
    reason = (short(result.cell.reason, 160) or "none was given").removesuffix(".")
    if kind == NOW_AFFECTED:
        return (
            f"{name} is affected by {bug}; {version} was not. "
            f"{scenario.title[:1].upper()}{scenario.title[1:]}. Only with {scenario.trigger}. "
            f"What to do: {scenario.remedy or f'use {result.package} {version}'}. First seen in "
            f"the nightly of {day}."
        )
    if kind == NO_LONGER_AFFECTED:
        return f"{name} is not affected by {bug}; {version} was."
    if kind == NO_LONGER_CERTAIN:
        return (
            f"{name} is {status} for {bug}; {was} Reason: {reason}. Until a run succeeds, it "
            f"is not known whether this release has the bug: {scenario.title}. First seen in "
            f"the nightly of {day}."
        )
    if kind == UNSUPPORTED_HERE:
        return (
            f"{name} cannot be tested for {bug} on this machine; {was} Reason: {reason}. Run "
            "the nightly on a machine that supports it."
        )
    return f"{name} has a status for {bug} again: {status}. {was}"


def _name(result: ReleaseResult, releases: Releases) -> str:
    release = releases.get((result.package, result.version))
    day = f" ({release.day})" if release else ""
    return f"{result.package} {result.version}{day}"


def command(result: ReleaseResult) -> str:
    """The command that repeats the run of a result."""
    return (
        f"python -m harness run scenario={result.cell.scenario} variant=released "
        f"pins.{result.package}={result.version}"
    )


def of_ours(tonight: Iterable[Done], before: Sequence[Done], day: str) -> list[Change]:
    """Which of our scenarios no longer reproduce, or reproduce again.

    ``before`` has the runs of earlier nightlies. A scenario without an earlier run counts as
    reproduced, since the catalogue has only scenarios that reproduce.
    Inconclusive and unsupported verdicts do not count.
    """
    clear = (Verdict.REPRODUCED, Verdict.NOT_REPRODUCED)
    changes = []
    for result in (done.result for done in tonight):
        earlier = [old.result.verdict for old in before if old.result.scenario == result.scenario]
        last = next((v for v in reversed(earlier) if v in clear), Verdict.REPRODUCED)
        if result.verdict not in clear or result.verdict is last:
            continue
        name, kind = result.scenario, REPRODUCES_AGAIN
        message = f"{name} reproduces again."
        if result.verdict is Verdict.NOT_REPRODUCED:
            kind = NO_LONGER_REPRODUCES
            message = (
                f"{name} no longer reproduces on the releases that it pins: "
                f"{why(result) or 'see its run'}. These releases did not change, so torch, the "
                f"machine or this harness did. First seen in the nightly of {day}."
            )
        message = f"{message} {SEE}python -m harness run scenario={name}"
        changes.append(Change(kind, name, None, None, str(last), str(result.verdict), message))
    return changes


def of_yanked(
    releases: Iterable[Release], before: Releases, results: Sequence[ReleaseResult]
) -> list[Change]:
    """The releases that were yanked since ``before``, for each scenario that has a result."""
    newest_results = newest_certain(results)
    changes = []
    for release in releases:
        old = before.get((release.package, release.version))
        if not (release.yanked and old and not old.yanked):
            continue
        for (scenario, package, version), result in sorted(newest_results.items()):
            if (package, version) == (release.package, release.version):
                status = str(result.cell.status)
                message = (
                    f"{package} {version} ({release.day}) was yanked and is no longer tested. "
                    f"Its last status for {scenario} stays: {status}."
                )
                changes.append(Change(YANKED, scenario, package, version, status, YANKED, message))
    return changes


def worse(changes: Iterable[Change]) -> list[Change]:
    """The changes for the worse."""
    return [change for change in changes if change.kind in WORSE]
