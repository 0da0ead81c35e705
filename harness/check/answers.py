"""The answer of ``check`` for each bug, from recorded results. Nothing is run or imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from harness import catalog
from harness.settings import Setting, trigger
from harness.spec import HARMS, RELEASED, VISIBILITIES, Scenario
from harness.stacks.environment import Environment
from harness.sweep.lookup import lookup
from harness.sweep.periods import Period, periods
from harness.upstream import pins

TESTED, NEIGHBOURS, RAN = "tested", "neighbours", "ran"
"""How an answer is known: from a recorded run of these releases or of their neighbours, or from a
run now."""


class Answer(str, Enum):
    """Whether an environment has a bug."""

    AFFECTED = "affected"
    POSSIBLY = "possibly affected"
    UNKNOWN = "unknown"
    NOT_AFFECTED = "not affected"
    NOT_TRIGGERED = "not triggered"
    DOES_NOT_APPLY = "does not apply"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Checked:
    """The answer for one bug, and how it is known."""

    scenario: str
    answer: Answer
    why: str
    releases: Mapping[str, str]
    """The installed releases that it is about."""
    how: str = ""
    """TESTED, NEIGHBOURS or RAN; empty if it is not known, or does not apply."""
    settings: str = ""
    """What the settings say of the trigger; empty without settings."""
    periods: tuple[Period, ...] = ()
    """Since and until when releases have the bug."""

    @property
    def command(self) -> str:
        """The command that shows the bug with these releases."""
        named = [f"pins.{name}={version}" for name, version in self.releases.items()]
        words = [f"scenario={self.scenario}", f"variant={RELEASED}", *named]
        return " ".join(["python -m harness run", *words])


def recorded(
    names: Iterable[str], environment: Environment, settings: Mapping[str, Setting] | None = None
) -> list[Checked]:
    """The answer for each bug, from recorded results; most damaging first.

    ``settings`` narrow it: a bug whose trigger is certainly off is not triggered.
    """
    found = [_narrowed(_recorded(name, environment), settings) for name in names]
    return by_severity(found)


def by_severity(found: Iterable[Checked]) -> list[Checked]:
    """The answers by kind, affected first; of one kind the most damaging bug first, and then the
    hardest to notice."""
    return sorted(found, key=_severity)


def _severity(checked: Checked) -> tuple[int, int, int, str]:
    scenario = catalog.scenario(checked.scenario)
    harm = (*HARMS, scenario.harm).index(scenario.harm)
    visibility = (*VISIBILITIES, scenario.visibility).index(scenario.visibility)
    return list(Answer).index(checked.answer), harm, visibility, checked.scenario


def _recorded(name: str, environment: Environment) -> Checked:
    scenario = catalog.scenario(name)
    wanted = [p for p in scenario.pins if p not in scenario.vehicles] or ["torch"]
    installed = {p: environment.packages[p] for p in wanted if p in environment.packages}
    releases = {package: each.version for package, each in installed.items()}
    if why := _inapplicable(scenario, wanted, releases, environment):
        return Checked(name, Answer.DOES_NOT_APPLY, why, releases)
    if unclear := [why for package in installed if (why := _not_a_release(package, environment))]:
        return Checked(name, Answer.UNKNOWN, unclear[0], releases)
    public = {package: each.public for package, each in installed.items()}
    found = lookup(name, public)
    if found.status is None:
        return Checked(name, Answer.UNKNOWN, found.why, releases)
    how = TESTED if found.tested else NEIGHBOURS
    of = tuple(periods(name))
    return Checked(name, Answer(str(found.status)), found.why, releases, how, periods=of)


def _inapplicable(
    scenario: Scenario, wanted: Sequence[str], releases: Mapping[str, str], environment: Environment
) -> str:
    """Why a bug is not about this environment; empty if it is.

    A file that may leave out packages must name the package with the bug; the others may be there.
    """
    needed = wanted if environment.complete else wanted[:1]
    if missing := [package for package in needed if package not in releases]:
        return f"{missing[0]} is not installed" if environment.complete else f"no {missing[0]}"
    subject = wanted[0]
    if _not_a_release(subject, environment) or pins.covers(scenario, releases):
        return ""
    return f"{subject} {releases[subject]}: this is about {scenario.releases}"


def _not_a_release(package: str, environment: Environment) -> str:
    """Why the installed version of a package says nothing about a release; empty if it does."""
    installed = environment.packages[package]
    named = f"{package} {installed.version}".rstrip()
    return f"{named}: {installed.origin}" if installed.origin else ""


def _narrowed(checked: Checked, settings: Mapping[str, Setting] | None) -> Checked:
    """The answer for a run with these settings."""
    if settings is None or checked.answer not in (Answer.AFFECTED, Answer.UNKNOWN):
        return checked
    found = trigger(catalog.scenario(checked.scenario).settings, settings)
    answer: Answer = checked.answer
    if found.met is False:
        answer = Answer.NOT_TRIGGERED
    elif found.met is None and answer is Answer.AFFECTED:
        answer = Answer.POSSIBLY
    return replace(checked, answer=answer, settings=found.why)
