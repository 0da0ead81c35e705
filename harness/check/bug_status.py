"""The status of each bug in an environment, from recorded results. Nothing is run or imported."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.bugs import catalog, pins, remedies
from harness.bugs.api.settings import trigger
from harness.bugs.api.spec import HARMS, RELEASED, VISIBILITIES
from harness.bugs.lookup import lookup
from harness.bugs.periods import Period, periods
from harness.bugs.remedies import Fits, any_fits
from harness.bugs.results import Status
from harness.check.environment import Environment
from harness.check.installed import OneOf, Unknown
from harness.python.results import Acceptance, Advice, Setting
from harness.system.text import StrEnum

TESTED, NEIGHBOURS, READ, RAN = "tested", "neighbours", "read", "ran"
"""How a status is known: from a recorded run of these releases or of their neighbours, from
upstream's history or source, or from a run now."""


class BugStatus(StrEnum):
    """Whether an environment has a bug."""

    AFFECTED = "affected"
    POSSIBLY = "possibly affected"
    UNKNOWN = "unknown"
    NOT_AFFECTED = "not affected"
    NOT_TRIGGERED = "not triggered"
    DOES_NOT_APPLY = "does not apply"


THERE = (BugStatus.AFFECTED, BugStatus.POSSIBLY, BugStatus.UNKNOWN)


@dataclass(frozen=True)
class Checked:
    """The status of one bug, and how it is known."""

    scenario: str
    status: BugStatus
    why: str
    releases: Mapping[str, str]
    """The installed releases that it is about."""
    how: str = ""
    """TESTED, NEIGHBOURS, READ or RAN; empty if it is not known, or does not apply."""
    settings: str = ""
    """What the settings say of the trigger; empty without settings."""
    periods: tuple[Period, ...] = ()
    """Since and until when releases have the bug."""
    accepted: Acceptance | None = None
    """What the user has decided about it, if that holds today."""
    fits: Fits = any_fits
    """Whether a release is for the Python of the environment."""

    @property
    def counts(self) -> bool:
        """Whether the user has not accepted the bug, and the environment has it or may have it."""
        return self.status in THERE and self.accepted is None

    @property
    def subject(self) -> tuple[str, str] | None:
        """The package with the bug and its installed release; None if no release is named."""
        name = next(iter(catalog.scenario(self.scenario).pins), "")
        version = self.releases.get(name)
        return (name, pins.as_pinned(name, version)) if version else None

    @property
    def remedy(self) -> str:
        """What a user of these releases can do."""
        return remedies.of(self.scenario, self.subject[1] if self.subject else None, self.fits)

    @property
    def command(self) -> str:
        """The command that shows the bug with these releases."""
        overrides = [
            # An index has only the release that a development version became.
            f"pins.{name}={re.sub(r'[.]dev[0-9]+([+].*)?$', '', version)}"
            for name, version in self.releases.items()
            if version
        ]
        words = [f"scenario={self.scenario}", f"variant={RELEASED}", *overrides]
        return " ".join(["python -m harness run", *words])


def recorded(
    names: Iterable[str], environment: Environment, settings: Mapping[str, Setting] | None = None
) -> list[Checked]:
    """The status of each bug, from recorded results; most damaging first.

    ``settings`` narrow it: a bug whose trigger is certainly off is not triggered.
    """
    bugs = [_narrowed(_recorded(name, environment), settings) for name in names]
    return by_severity(replace(bug, fits=environment.fits) for bug in bugs)


def with_accepted(
    bugs: Iterable[Checked], accepted: Mapping[str, Acceptance], day: str
) -> list[Checked]:
    """Add to each status the user's acceptance, if it holds on a day (ISO)."""
    holding = {name: entry for name, entry in accepted.items() if entry.holds(day)}
    return [replace(checked, accepted=holding.get(checked.scenario)) for checked in bugs]


def outdated(
    bugs: Iterable[Checked], accepted: Mapping[str, Acceptance], day: str
) -> Iterator[str]:
    """A line for each acceptance that no longer serves: it has ended, or the bug is gone."""
    for checked in bugs:
        entry = accepted.get(checked.scenario)
        if entry and checked.status not in THERE:
            message = f"{entry.bug} is accepted, but is no longer there ({checked.status})"
            yield f"{message}: remove it from {entry.file}"
        elif entry and not entry.holds(day):
            yield f"{entry.bug} counts again: it was accepted until {entry.until} ({entry.file})"


def advice(bugs: Sequence[Checked], settings: Mapping[str, Setting] | None = None) -> list[Advice]:
    """For each package with bugs, the release that has the fewest, if that helps."""
    affected: dict[tuple[str, str], list[str]] = {}
    fits = next((checked.fits for checked in bugs), any_fits)
    for checked in bugs:
        if checked.status in (BugStatus.AFFECTED, BugStatus.POSSIBLY) and checked.subject:
            affected.setdefault(checked.subject, []).append(checked.scenario)
    suggestions = []
    for (package, release), names in sorted(affected.items()):
        unaffected = [
            checked.scenario
            for checked in bugs
            if checked.subject == (package, release)
            and checked.status is BugStatus.NOT_AFFECTED
            and not (
                settings is not None
                and trigger(catalog.scenario(checked.scenario).settings, settings).met is False
            )
        ]
        suggestions.append(remedies.advice(package, release, names, unaffected, fits))
    return [suggestion for suggestion in suggestions if suggestion]


def by_severity(bugs: Iterable[Checked]) -> list[Checked]:
    """Sort bugs by status, affected first; then the most damaging first; then the hardest to
    notice."""

    def severity(checked: Checked) -> tuple[int, int, int, str]:
        scenario = catalog.scenario(checked.scenario)
        harm = (*HARMS, scenario.harm).index(scenario.harm)
        visibility = (*VISIBILITIES, scenario.visibility).index(scenario.visibility)
        return list(BugStatus).index(checked.status), harm, visibility, checked.scenario

    return sorted(bugs, key=severity)


def _recorded(name: str, environment: Environment) -> Checked:
    scenario = catalog.scenario(name)
    required = [p for p in scenario.pins if p not in scenario.vehicles] or ["torch"]
    installed = {p: environment.packages[p] for p in required if p in environment.packages}
    versions = (p.versions if isinstance(p, OneOf) else (p.version,) for p in installed.values())
    choices = [dict(zip(installed, each, strict=True)) for each in itertools.product(*versions)]
    concerned = [each for each in choices if not _excluded(name, each)]
    releases = (concerned or choices)[0]
    if why := _inapplicable(name, required, releases, environment):
        return Checked(name, BugStatus.DOES_NOT_APPLY, why, releases)
    reasons = (_not_a_release(p, environment) for p in installed if p in scenario.deciding)
    if why := next(filter(None, reasons), ""):
        return Checked(name, BugStatus.UNKNOWN, why, releases)
    return _of_all(name, concerned or choices, everywhere=len(concerned) == len(choices))


def _of_all(name: str, choices: Sequence[Mapping[str, str]], *, everywhere: bool) -> Checked:
    """One of these choices is installed: return the status that they share, otherwise possibly
    affected if any is affected. ``everywhere`` says whether the bug is about all of them."""
    answers = [lookup(name, _public(choice)) for choice in choices]
    statuses = {answer.status for answer in answers}
    position = next((n for n, answer in enumerate(answers) if answer.status is Status.AFFECTED), 0)
    answer, is_shared = answers[position], len(statuses) == 1
    why = answer.why if is_shared else "; ".join(answer.why for answer in answers)
    if answer.status is Status.AFFECTED:
        status = BugStatus.AFFECTED if is_shared and everywhere else BugStatus.POSSIBLY
    else:
        status = BugStatus(str((is_shared and answer.status) or BugStatus.UNKNOWN))
    if status is BugStatus.UNKNOWN:
        return Checked(name, status, why, choices[0])
    how = TESTED if answer.tested else READ if answer.is_read else NEIGHBOURS
    return Checked(name, status, why, choices[position], how, periods=tuple(periods(name)))


def _public(releases: Mapping[str, str]) -> dict[str, str]:
    """Remove the labels of builds: 2.13.0+cu130 becomes 2.13.0."""
    return {name: version.partition("+")[0] for name, version in releases.items()}


def _excluded(name: str, releases: Mapping[str, str]) -> str:
    """Explain why releases that the scenario cannot test cannot have the bug; empty if they may."""
    if pins.covers(catalog.scenario(name), releases):
        return ""
    answer = lookup(name, _public(releases))
    return answer.why if answer.status is Status.NOT_AFFECTED else ""


def _inapplicable(
    name: str, required: Sequence[str], releases: Mapping[str, str], environment: Environment
) -> str:
    """Explain why a bug does not apply to this environment; empty if it applies, or may apply.

    A file that may leave out packages must name only the package with the bug.
    """
    if not catalog.scenario(name).pins:
        return "every release of torch has it, on a GPU"
    without = catalog.scenario(name).without
    needed = [p for p in required if p not in without] if environment.complete else required[:1]
    if missing := [package for package in needed if package not in releases]:
        return f"{missing[0]} is not installed" if environment.complete else f"no {missing[0]}"
    subject = required[0]
    return "" if _not_a_release(subject, environment) else _excluded(name, releases)


def _not_a_release(package: str, environment: Environment) -> str:
    """Explain why the installed package is not a published release; empty if it is one."""
    installed = environment.packages[package]
    if not isinstance(installed, Unknown):
        return ""
    return f"{f'{package} {installed.version}'.rstrip()}: {installed.because}"


def _narrowed(checked: Checked, settings: Mapping[str, Setting] | None) -> Checked:
    """The status for a run with these settings."""
    if settings is None or checked.status not in THERE:
        return checked
    verdict = trigger(catalog.scenario(checked.scenario).settings, settings)
    status: BugStatus = checked.status
    if verdict.met is False:
        status = BugStatus.NOT_TRIGGERED
    elif verdict.met is None and status is BugStatus.AFFECTED:
        status = BugStatus.POSSIBLY
    return replace(checked, status=status, settings=verdict.why)
