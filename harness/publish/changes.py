"""What changed: each result compared with the release before it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from harness.bugs import catalog
from harness.bugs.api.spec import Verdict
from harness.bugs.pins import is_source
from harness.bugs.results import Status
from harness.publish.history_rows import Change, ReleaseResult, ScenarioResult, newest_certain
from harness.releases.index import Release
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
        lower = _lower(result, newest_results.values())
        if kind := _kind(result, previous, lower):
            reference = _reference(kind, previous, lower)
            changes.append(_change(kind, result, reference, releases, day))
    return changes


def _order(result: ReleaseResult) -> tuple[str, str, Version]:
    return result.cell.scenario, result.package, Version(result.version)


def _lower(result: ReleaseResult, results: Iterable[ReleaseResult]) -> list[ReleaseResult]:
    """The results of lower releases for the same scenario and package, nearest first. For a source,
    the sources of earlier nightlies come before them, newest first."""
    scenario, package, version = _order(result)
    of_package = [one for one in results if one.key[:2] == (scenario, package)]
    releases = [one for one in of_package if not is_source(one.version)]
    below = [one for one in releases if Version(one.version) < version]
    earlier = [one for one in of_package if one not in releases and one.nightly < result.nightly]
    if not is_source(result.version):
        earlier = []
    return [
        *sorted(earlier, key=lambda one: one.nightly, reverse=True),
        *sorted(below, key=_order, reverse=True),
    ]


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
    message = _MESSAGES[kind](result, reference, _name(result, releases), day)
    return Change(
        kind,
        cell.scenario,
        result.package,
        result.version,
        str(reference.cell.status),
        str(cell.status),
        f"{message} {SEE}{command(result)}",
    )


def _now_affected(result: ReleaseResult, reference: ReleaseResult, name: str, day: str) -> str:
    scenario = catalog.scenario(result.cell.scenario)
    remedy = scenario.remedy or f"use {result.package} {reference.version}"
    return (
        f"{name} is affected by {result.cell.scenario}; {reference.version} was not. "
        f"{scenario.title[:1].upper()}{scenario.title[1:]}. Only with {scenario.trigger}. "
        f"What to do: {remedy}. First seen in the nightly of {day}."
    )


def _no_longer_affected(
    result: ReleaseResult, reference: ReleaseResult, name: str, day: str
) -> str:
    return f"{name} is not affected by {result.cell.scenario}; {reference.version} was."


def _not_certain(result: ReleaseResult, reference: ReleaseResult, name: str, day: str) -> str:
    title = catalog.scenario(result.cell.scenario).title
    return (
        f"{name} is {result.cell.status} for {result.cell.scenario}; {reference.version} was "
        f"{reference.cell.status}. Reason: {_reason(result)} Until a run succeeds, it is not known "
        f"whether this release has the bug: {title}. First seen in the nightly of {day}."
    )


def _unsupported(result: ReleaseResult, reference: ReleaseResult, name: str, day: str) -> str:
    return (
        f"{name} cannot be tested for {result.cell.scenario} on this machine; "
        f"{reference.version} was {reference.cell.status}. Reason: {_reason(result)} Run the "
        "nightly on a machine that supports it."
    )


def _certain_again(result: ReleaseResult, reference: ReleaseResult, name: str, day: str) -> str:
    return (
        f"{name} has a status for {result.cell.scenario} again: {result.cell.status}. "
        f"{reference.version} was {reference.cell.status}."
    )


def _reason(result: ReleaseResult) -> str:
    """The reason of a result, as a sentence."""
    text = short(result.cell.reason, 160) or "none was given"
    return text if text.endswith(".") else f"{text}."


_MESSAGES = {
    NOW_AFFECTED: _now_affected,
    NO_LONGER_AFFECTED: _no_longer_affected,
    NO_LONGER_CERTAIN: _not_certain,
    UNSUPPORTED_HERE: _unsupported,
    CERTAIN_AGAIN: _certain_again,
}


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


def of_ours(
    tonight: Sequence[ScenarioResult], before: Sequence[ScenarioResult], day: str
) -> list[Change]:
    """Which of our scenarios no longer reproduce, or reproduce again.

    ``before`` has the results of earlier nightlies. A scenario without an earlier result counts as
    reproduced, since the catalogue has only scenarios that reproduce.
    Inconclusive and unsupported verdicts do not count.
    """
    changes = []
    for result in tonight:
        earlier = [old.verdict for old in before if old.scenario == result.scenario]
        last_verdict = next((v for v in reversed(earlier) if v in _CLEAR), str(Verdict.REPRODUCED))
        if result.verdict in _CLEAR and result.verdict != last_verdict:
            changes.append(_change_of_ours(result, last_verdict, day))
    return changes


_CLEAR = (str(Verdict.REPRODUCED), str(Verdict.NOT_REPRODUCED))


def _change_of_ours(result: ScenarioResult, last_verdict: str, day: str) -> Change:
    name, verdict = result.scenario, result.verdict
    see = f"{SEE}python -m harness run scenario={name}"
    if verdict == str(Verdict.REPRODUCED):
        message = f"{name} reproduces again. {see}"
        return Change(REPRODUCES_AGAIN, name, None, None, last_verdict, verdict, message)
    message = (
        f"{name} no longer reproduces on the releases that it pins: "
        f"{result.reasons or 'see its run'}. These releases did not change, so torch, the machine "
        f"or this harness did. First seen in the nightly of {day}. {see}"
    )
    return Change(NO_LONGER_REPRODUCES, name, None, None, last_verdict, verdict, message)


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
