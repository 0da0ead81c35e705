"""What changed: each answer beside the one of the release before it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from harness import catalog
from harness.spec import Verdict
from harness.sweep.cells import Status
from harness.sweep.history import Change, Own, ReleaseResult, newest
from harness.upstream.index import Release

NOW_AFFECTED = "now affected"
NO_LONGER_AFFECTED = "no longer affected"
NO_LONGER_ANSWERS = "no longer answers"
CANNOT_BE_ASKED = "cannot be asked here"
ANSWERS_AGAIN = "answers again"
NO_LONGER_REPRODUCES = "no longer reproduces"
REPRODUCES_AGAIN = "reproduces again"
YANKED = "yanked"

WORSE = frozenset({NOW_AFFECTED, NO_LONGER_ANSWERS, NO_LONGER_REPRODUCES})
"""The changes that end a night with exit code 1."""

SEE = "To see it: "
"""What the command stands after that shows what changed."""

Releases = Mapping[tuple[str, str], Release]
"""Releases by package and version."""


def of_releases(
    tonight: Sequence[ReleaseResult], before: Sequence[ReleaseResult], releases: Releases, day: str
) -> list[Change]:
    """What the answers of a night changed; ``before`` is all that was said earlier, oldest first.

    A release is compared with the nearest lower version of its package that the same scenario has
    an answer of. So a late patch of an old branch is compared within its branch.
    """
    known = newest([*before, *tonight])
    earlier = newest(before)
    found = []
    for asked in sorted(tonight, key=_order):
        own = earlier.get(asked.key)
        lower = _lower(asked, known.values())
        if kind := _kind(asked, own, lower):
            than = _than(kind, own, lower)
            found.append(_change(kind, asked, than, releases, day))
    return found


def _order(asked: ReleaseResult) -> tuple[str, str, Version]:
    return asked.cell.scenario, asked.package, Version(asked.version)


def _lower(asked: ReleaseResult, known: Iterable[ReleaseResult]) -> list[ReleaseResult]:
    """The answers of lower versions to the same question, the nearest first."""
    scenario, package, version = _order(asked)
    of_package = [one for one in known if one.key[:2] == (scenario, package)]
    below = [one for one in of_package if Version(one.version) < version]
    return sorted(below, key=_order, reverse=True)


def _certain(told: Iterable[ReleaseResult]) -> ReleaseResult | None:
    return next((asked for asked in told if asked.cell.status.certain), None)


def _kind(
    asked: ReleaseResult, own: ReleaseResult | None, lower: Sequence[ReleaseResult]
) -> str | None:
    """What changed with an answer; None where nothing did, or there is nothing to compare with."""
    if not asked.cell.status.certain:
        if own is not None or not _answers(lower):
            return None  # told before, or no change
        unsupported = asked.cell.status is Status.UNSUPPORTED
        return CANNOT_BE_ASKED if unsupported else NO_LONGER_ANSWERS
    beside = _certain(lower)
    if beside and beside.cell.status is not asked.cell.status:
        return NOW_AFFECTED if asked.cell.status is Status.AFFECTED else NO_LONGER_AFFECTED
    silent = (own and not own.cell.status.certain) or (lower and not _answers(lower))
    return ANSWERS_AGAIN if silent else None


def _answers(lower: Sequence[ReleaseResult]) -> bool:
    """Whether the nearest lower version has a certain answer."""
    return bool(lower) and lower[0].cell.status.certain


def _than(kind: str, own: ReleaseResult | None, lower: Sequence[ReleaseResult]) -> ReleaseResult:
    """The answer that another one is no longer like."""
    if kind == ANSWERS_AGAIN:
        return own if own and not own.cell.status.certain else lower[0]
    return next(one for one in lower if one.cell.status.certain)


def _change(
    kind: str, asked: ReleaseResult, than: ReleaseResult, releases: Releases, day: str
) -> Change:
    cell = asked.cell
    told = _TOLD[kind](asked, than, releases, day)
    return Change(
        kind,
        cell.scenario,
        asked.package,
        asked.version,
        str(than.cell.status),
        str(cell.status),
        told,
    )


def _now_affected(asked: ReleaseResult, than: ReleaseResult, releases: Releases, day: str) -> str:
    scenario = catalog.scenario(asked.cell.scenario)
    return (
        f"{_name(asked, releases)} has {asked.cell.scenario}, which {than.version} had not: "
        f"{scenario.title}. Only with {scenario.trigger}. What to do: {scenario.remedy}. Since the "
        f"night of {day}. {SEE}{command(asked)}"
    )


def _no_longer_affected(
    asked: ReleaseResult, than: ReleaseResult, releases: Releases, day: str
) -> str:
    return (
        f"{_name(asked, releases)} no longer has {asked.cell.scenario}, which {than.version} had. "
        f"{SEE}{command(asked)}"
    )


def _no_longer_answers(
    asked: ReleaseResult, than: ReleaseResult, releases: Releases, day: str
) -> str:
    return (
        f"{_name(asked, releases)} gives no answer to {asked.cell.scenario}, where {than.version} "
        f"was {than.cell.status}: it is {asked.cell.status}, {_why(asked)} Until it answers, "
        f"nobody knows whether it has the bug: {catalog.scenario(asked.cell.scenario).title}. "
        f"Since the night of {day}. {SEE}{command(asked)}"
    )


def _cannot_be_asked(
    asked: ReleaseResult, than: ReleaseResult, releases: Releases, day: str
) -> str:
    return (
        f"{_name(asked, releases)} cannot be asked about {asked.cell.scenario} on this machine, "
        f"where {than.version} was {than.cell.status}: {_why(asked)} Nights on a machine that can "
        f"run it would tell. {SEE}{command(asked)}"
    )


def _answers_again(asked: ReleaseResult, than: ReleaseResult, releases: Releases, day: str) -> str:
    return (
        f"{_name(asked, releases)} answers {asked.cell.scenario} again: {asked.cell.status}. "
        f"{than.version} was {than.cell.status}. {SEE}{command(asked)}"
    )


def _why(asked: ReleaseResult) -> str:
    """The reason of an answer, which ends as a sentence, or where it was cut."""
    text = short(asked.cell.reason) or "it does not say why"
    return text if text.endswith(".") else f"{text}."


def short(reason: str, widest: int = 160) -> str:
    """The first line of a reason, cut to what there is room for."""
    line = (reason.splitlines() or [""])[0]
    return line if len(line) <= widest else line[: widest - 4] + " ..."


_TOLD = {
    NOW_AFFECTED: _now_affected,
    NO_LONGER_AFFECTED: _no_longer_affected,
    NO_LONGER_ANSWERS: _no_longer_answers,
    CANNOT_BE_ASKED: _cannot_be_asked,
    ANSWERS_AGAIN: _answers_again,
}


def _name(asked: ReleaseResult, releases: Releases) -> str:
    release = releases.get((asked.package, asked.version))
    day = f" ({release.day})" if release else ""
    return f"{asked.package} {asked.version}{day}"


def command(asked: ReleaseResult) -> str:
    """What to type to see an answer."""
    return (
        f"python -m harness run scenario={asked.cell.scenario} variant=released "
        f"pins.{asked.package}={asked.version}"
    )


def of_ours(tonight: Sequence[Own], before: Sequence[Own], day: str) -> list[Change]:
    """Which scenarios of ours no longer reproduce, or do again; ``before``: of earlier nights.

    One that was never run before counts as reproduced: it could not be in the catalogue else. What
    was inconclusive or unsupported says nothing.
    """
    found = []
    for own in tonight:
        told = [old.verdict for old in before if old.scenario == own.scenario]
        said = [verdict for verdict in told if verdict in _SAYS]
        last = said[-1] if said else str(Verdict.REPRODUCED)
        if own.verdict in _SAYS and own.verdict != last:
            found.append(_own(own, last, day))
    return found


_SAYS = (str(Verdict.REPRODUCED), str(Verdict.NOT_REPRODUCED))


def _own(own: Own, last: str, day: str) -> Change:
    see = f"{SEE}python -m harness run scenario={own.scenario}"
    if own.verdict == str(Verdict.REPRODUCED):
        told = f"{own.scenario} reproduces again. {see}"
        return Change(REPRODUCES_AGAIN, own.scenario, None, None, last, own.verdict, told)
    why = "; ".join(reason.splitlines()[0] for reason in own.result["reasons"] if reason)
    told = (
        f"{own.scenario} no longer reproduces on the releases that it pins: {why or 'see its run'}."
        f" Upstream's releases did not change, so look at what did: torch, the machine, or this "
        f"harness. Since the night of {day}. {see}"
    )
    return Change(NO_LONGER_REPRODUCES, own.scenario, None, None, last, own.verdict, told)


def of_yanked(
    now: Iterable[Release], before: Releases, told: Sequence[ReleaseResult]
) -> list[Change]:
    """Which releases were yanked since they were kept, for each scenario that has an answer."""
    known = newest(told)
    found = []
    for release in now:
        old = before.get((release.package, release.version))
        if not (release.yanked and old and not old.yanked):
            continue
        for (scenario, package, version), asked in sorted(known.items()):
            if (package, version) == (release.package, release.version):
                answer = str(asked.cell.status)
                said = (
                    f"{package} {version} ({release.day}) was yanked, and is not asked any more. "
                    f"Its last answer to {scenario}, {answer}, is kept."
                )
                found.append(Change(YANKED, scenario, package, version, answer, YANKED, said))
    return found


def worse(changes: Iterable[Change]) -> list[Change]:
    """The changes for the worse."""
    return [change for change in changes if change.kind in WORSE]
