"""The pages of docs/ and of scenarios that are made from templates, as Markdown.

A story is about several bugs of one piece of upstream's code, on one axis of releases.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packaging.version import Version

from harness.bugs import catalog
from harness.bugs.api.spec import Story
from harness.bugs.lookup import infer
from harness.bugs.periods import tested
from harness.bugs.results import Status
from harness.publish.alive import AliveBug, alive_bugs
from harness.publish.bugs import Bug
from harness.system.installation import for_readers
from harness.system.text import LINK, count, markdown

BARE = re.compile(rf"(?<![(<]){LINK.pattern}")
"""An address that is not part of a link."""

SIGNS = {Status.AFFECTED: "**●**", Status.NOT_AFFECTED: "○", None: ""}


PAGE = "README.md"
"""The page of a scenario, in its folder."""
BY_HAND, END = "<!-- by hand -->", "<!-- end of by hand -->"


def of_bug(name: str) -> str:
    """A scenario's page, with the section that is written by hand, as its file has it."""
    file = catalog.folder(name) / PAGE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, begin, tail = text.partition(BY_HAND)
    section = tail.partition(END)[0].strip("\n") if begin else ""
    by_hand = "\n".join([BY_HAND, *([section] if section else []), END])
    return _page("bug", bug=Bug(name), by_hand=by_hand)


def of_living(bugs: Sequence[AliveBug] | None = None) -> str:
    """docs/alive.md: the bugs that the newest tested releases still have, by default from recorded
    runs."""
    return _page("alive", bugs=alive_bugs() if bugs is None else bugs)


def of_stories() -> Iterator[tuple[str, str]]:
    """The file name and the text of each page in docs/stories."""
    for story in stories():
        bugs = [Bug(name) for name in story.scenarios]
        text = _page("story", story=story, bugs=bugs, subject=subject(story), spans=spans(story))
        yield f"{story.name}.md", text


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
    rows = [
        (v, {n: of.get(v) or infer(of.items(), v).status for n, of in by_scenario.items()})
        for v in versions
    ]
    return [
        Span(tuple(version for version, _ in group), statuses)
        for statuses, group in itertools.groupby(rows, key=lambda row: row[1])
    ]


def _page(template: str, **content: Any) -> str:
    return for_readers(_templates().get_template(f"{template}.md.j2").render(**content))


@cache
def _templates() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {"prose": markdown, "cell": _cell, "count": count, "beginning": _beginning}
    jinja.globals |= {"facts": _facts, "signs": SIGNS}
    return jinja


def _cell(text: str) -> str:
    """A text as a cell of a table."""
    linked = BARE.sub(r"<\g<0>>", markdown(text))
    return linked.replace("|", "\\|").replace("\n", "<br>")


def _facts(rows: Mapping[str, str]) -> str:
    """A table of two columns without titles."""
    lines = (f"| {name} | {_cell(text)} |" for name, text in rows.items())
    return "\n".join(["|  |  |", "| --- | --- |", *lines])


def _beginning(text: str, lines: int) -> str:
    """The first lines of a text, with dots if more follow."""
    head, tail = text.splitlines()[:lines], text.splitlines()[lines:]
    return "\n".join(head) + (" ..." if tail else "")
