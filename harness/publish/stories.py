"""Stories, in docs/stories and on the site: several bugs of one piece of upstream's code.

Each shows its bugs on one axis of releases, from recorded runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from harness.bugs import catalog
from harness.bugs.api.spec import Story
from harness.bugs.lookup import infer
from harness.bugs.periods import tested
from harness.bugs.results import Status


@dataclass(frozen=True)
class Span:
    """Consecutive tested releases with the same status of each bug."""

    releases: tuple[str, ...]
    """Oldest first."""
    statuses: Mapping[str, Status | None]
    """Of each scenario of the story; None if it is not known."""

    def __str__(self) -> str:
        start, end = self.releases[0], self.releases[-1]
        return start if start == end else f"{start} to {end}"


def stories() -> tuple[Story, ...]:
    """All stories, with the scenarios that the catalogue has."""
    from scenarios.stories import STORIES

    return STORIES


def subject(story: Story) -> str:
    """The package that the story is about."""
    return catalog.scenario(story.scenarios[0]).subject


def spans(story: Story) -> list[Span]:
    """The releases of a story, oldest first. A release that a bug was not tested with takes the
    status of its tested neighbours, if they agree."""
    by_scenario = {name: tested(name) for name in story.scenarios}
    versions = sorted({version for each in by_scenario.values() for version in each}, key=Version)
    rows = [(v, {name: _status(each, v) for name, each in by_scenario.items()}) for v in versions]
    return [
        Span(tuple(version for version, _ in group), statuses)
        for statuses, group in itertools.groupby(rows, key=lambda row: row[1])
    ]


def _status(tested: Mapping[str, Status], version: str) -> Status | None:
    if version in tested:
        return tested[version]
    return infer(tested.items(), version).status
