"""The pages of docs/ and of scenarios that are made from templates, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.bugs.results import Status
from harness.publish.alive import alive_bugs
from harness.publish.bugs import Bug
from harness.publish.stories import spans, stories, subject
from harness.system.installation import for_readers
from harness.system.text import LINK, count, markdown

BARE = re.compile(rf"(?<![(<]){LINK.pattern}")
"""An address that is not part of a link."""

SIGNS = {Status.AFFECTED: "**●**", Status.NOT_AFFECTED: "○", None: ""}


def of_bug(name: str, by_hand: str) -> str:
    """A scenario's README.md, with the section that is written by hand."""
    return _page("bug", bug=Bug(name), by_hand=by_hand)


def of_living() -> str:
    """docs/alive.md: the bugs that the newest tested releases still have."""
    return _page("alive", bugs=alive_bugs())


def of_stories() -> Iterator[tuple[str, str]]:
    """The file name and the text of each page in docs/stories."""
    for story in stories():
        bugs = [Bug(name) for name in story.scenarios]
        text = _page("story", story=story, bugs=bugs, subject=subject(story), spans=spans(story))
        yield f"{story.name}.md", text


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
