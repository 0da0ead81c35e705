"""The pages of docs/ and of scenarios that are made from templates, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.bugs import catalog
from harness.publish.alive import AliveBug, alive_bugs
from harness.publish.bugs import Bug
from harness.system.installation import for_readers
from harness.system.text import LINK, count, markdown

BARE = re.compile(rf"(?<![(<]){LINK.pattern}")
"""An address that is not part of a link."""

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


def _page(template: str, **content: Any) -> str:
    return for_readers(_templates().get_template(f"{template}.md.j2").render(**content))


def templates(*, html: bool) -> Environment:
    """The templates of a format, without filters of our own."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
    )


@cache
def _templates() -> Environment:
    jinja = templates(html=False)
    jinja.filters |= {"prose": markdown, "cell": _cell, "count": count, "beginning": _beginning}
    jinja.globals["facts"] = _facts
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
