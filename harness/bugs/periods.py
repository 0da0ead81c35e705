"""The periods of a bug: consecutive tested releases that are affected, from recorded runs alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from harness.bugs import catalog, result_file
from harness.bugs.api.spec import RELEASED, Outcome, Scenario
from harness.bugs.results import Status
from harness.python import results


class Period(results.Period):
    """A period as reports for people have it."""

    @property
    def first(self) -> str:
        return self.releases[0]

    @property
    def last(self) -> str:
        return self.releases[-1]

    def __str__(self) -> str:
        """For example ``0.25.0 to 0.29.3; 0.30.0 is not affected``."""
        start = f"{self.first} {self._doubt}".rstrip()
        if self.alive:
            return f"{start} to {self.last}, the newest tested"
        to_last = f"to {self.last}" if len(self.releases) > 1 else ""
        end = f"; {self.after} is not affected" if self.after else " (or later)"
        return f"{start} {to_last}".rstrip() + end

    @property
    def _doubt(self) -> str:
        """The releases before the first one that may have it as well."""
        if self.before:
            return ""
        if self.since:
            return "" if Version(self.since) == Version(self.first) else f"(or from {self.since})"
        return "(or earlier)"


def tested(name: str) -> dict[str, Status]:
    """The status of each tested release of a scenario's subject, oldest first.

    Results with different releases of its other packages count as one: affected, if one of them is.
    """
    subject = catalog.subject(name)
    by_version: dict[str, list[Status]] = {}
    for cell in result_file.statuses(name):
        by_version.setdefault(cell.pins[subject], []).append(cell.status)
    ordered = sorted(by_version.items(), key=lambda item: Version(item[0]))
    return {version: min(statuses, key=list(Status).index) for version, statuses in ordered}


def periods(name: str) -> list[Period]:
    """The periods in which a scenario's subject has the bug, oldest first."""
    statuses = tested(name)
    groups = [
        (status, tuple(version for version, _ in group))
        for status, group in itertools.groupby(statuses.items(), key=lambda item: item[1])
    ]
    certain = [version for version, status in statuses.items() if status.certain]
    spans: list[Period] = []
    for at, (status, versions) in enumerate(groups):
        if status is Status.AFFECTED:
            before = groups[at - 1] if at else None
            after = groups[at + 1] if at + 1 < len(groups) else None
            right = before[1][-1] if before and before[0] is Status.NOT_AFFECTED else None
            older = spans[-1].last if spans else None
            spans.append(
                Period(
                    versions,
                    right,
                    after[1][0] if after and after[0] is Status.NOT_AFFECTED else None,
                    versions[-1] == certain[-1],
                    None if right else _since(catalog.scenario(name), versions[0], older),
                )
            )
    return spans


def _since(scenario: Scenario, first: str, older: str | None) -> str | None:
    """Where releases end that cannot have the bug: the newest such end that is not after ``first``,
    and after ``older``, the last affected release before that."""
    requirements = (Requirement(absence.releases) for absence in scenario.absent)
    ends = {
        Version(each.version): each.version
        for requirement in requirements
        for each in requirement.specifier
        if requirement.name == scenario.subject and each.operator == "<"
    }
    near = [v for v in ends if v <= Version(first) and not (older and v <= Version(older))]
    return ends[max(near)] if near else None


def newest(name: str) -> tuple[str, Status] | None:
    """The newest release of the subject with a certain status, and the status."""
    certain = [(v, status) for v, status in tested(name).items() if status.certain]
    return certain[-1] if certain else None


@dataclass(frozen=True)
class Alive:
    """A bug that the newest tested release has."""

    scenario: str
    release: str
    variant: str
    """The variant that shows it; ``released`` if the scenario's own trigger does."""

    @property
    def trigger(self) -> str:
        """What a run must do to meet the bug."""
        bug = catalog.scenario(self.scenario)
        return bug.trigger if self.variant == RELEASED else bug.about(self.variant)


def alive(name: str) -> Alive | None:
    """Whether the newest tested release has the bug, see ``alive_in``."""
    pair = newest(name)
    return alive_in(name, *pair) if pair else None


def alive_in(name: str, release: str, status: Status) -> Alive | None:
    """Whether a release with a certain status has the bug, with the trigger of ``buggy`` or of
    another variant that runs on it as published."""
    if status is Status.AFFECTED:
        return Alive(name, release, RELEASED)
    scenario = catalog.scenario(name)
    for variant, definition in scenario.variants.items():
        pins: Mapping[str, Any] = {**scenario.pins, **scenario.pins_of(variant)}
        shows = definition.expect is Outcome.SYMPTOM and not definition.defects
        if shows and pins[scenario.subject] == release:
            return Alive(name, release, variant)
    return None
