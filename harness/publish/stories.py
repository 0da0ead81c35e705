"""Stories, in docs/stories and on the site: several bugs of one piece of upstream's code.

Each is on one axis of releases, from recorded runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from harness import catalog
from harness.api.spec import Story
from harness.ranges.cell import Status
from harness.ranges.lookup import infer
from harness.ranges.periods import periods, tested
from harness.system.installation import for_readers
from harness.system.text import markdown, markdown_table


@dataclass(frozen=True)
class Span:
    """Consecutive tested releases with the same status of each bug."""

    releases: tuple[str, ...]
    """Oldest first."""
    statuses: Mapping[str, Status | None]
    """Of each scenario of the story; None if it is not known."""

    def __str__(self) -> str:
        first, last = self.releases[0], self.releases[-1]
        return first if first == last else f"{first} to {last}"


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
    known = {name: tested(name) for name in story.scenarios}
    versions = sorted({version for each in known.values() for version in each}, key=Version)
    rows = [(v, {name: _status(each, v) for name, each in known.items()}) for v in versions]
    return [
        Span(tuple(version for version, _ in group), statuses)
        for statuses, group in itertools.groupby(rows, key=lambda row: row[1])
    ]


def _status(tested: Mapping[str, Status], version: str) -> Status | None:
    if version in tested:
        return tested[version]
    return infer(tested.items(), version).status


FOLDER = "stories"
"""The folder of the pages, beside docs/bugs.md."""
NOTE = "<!-- Made by `python -m harness pages` from scenarios/stories.py. Write nothing here. -->"
SIGNS = {Status.AFFECTED: "**●**", Status.NOT_AFFECTED: "○", None: ""}


def texts() -> Iterator[tuple[str, str]]:
    """The file name and the text of each story's page."""
    for story in stories():
        yield f"{story.name}.md", _page(story)


def _page(story: Story) -> str:
    bugs = [
        [
            str(number),
            f"[`{name}`]({_link(name)})",
            markdown(catalog.scenario(name).title),
            "<br>".join(map(str, periods(name))),
        ]
        for number, name in enumerate(story.scenarios, 1)
    ]
    numbers = [number for number, *_ in bugs]
    parts = [
        f"# {story.title}",
        NOTE,
        *(markdown(paragraph) for paragraph in story.text.split("\n\n")),
        "## The bugs",
        markdown_table(["", "scenario", "what happens", "affected releases"], bugs),
        "## The releases",
        "The columns are the bugs by their numbers: ● affected, ○ not affected, ? not clear. A "
        "release that was not tested with a bug has the status of its tested neighbours, if they "
        "agree.",
        markdown_table([subject(story), *numbers], [_row(story, span) for span in spans(story)]),
    ]
    return for_readers("\n\n".join(parts) + "\n")


def _link(name: str) -> str:
    return f"../../scenarios/{catalog.folder(name).parent.name}/{name}/README.md"


def _row(story: Story, span: Span) -> list[str]:
    return [str(span), *(SIGNS.get(span.statuses[name], "?") for name in story.scenarios)]
