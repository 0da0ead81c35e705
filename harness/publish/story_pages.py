"""docs/stories: several bugs of one piece of code on one axis of releases, from recorded runs."""

from __future__ import annotations

from collections.abc import Iterator

from harness import catalog
from harness.api.spec import Story
from harness.ranges.periods import periods
from harness.ranges.stories import Span, spans, stories, subject
from harness.sweep.cell import Status
from harness.system.text import markdown, markdown_table

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
        [f"{number}", f"[`{name}`]({_link(name)})", _title(name), _when(name)]
        for number, name in enumerate(story.scenarios, 1)
    ]
    numbers = [str(number) for number, _ in enumerate(story.scenarios, 1)]
    parts = [
        f"# {story.title}",
        NOTE,
        *(markdown(paragraph) for paragraph in story.text.split("\n\n")),
        "## The bugs",
        markdown_table(["", "scenario", "what happens", "affected releases"], bugs),
        "## The releases",
        "The columns are the bugs by their numbers: ● affected, ○ not affected, ? not certain. A "
        "release that was not tested with a bug has the status of its tested neighbours, if they "
        "agree.",
        markdown_table([subject(story), *numbers], [_row(story, span) for span in spans(story)]),
    ]
    return "\n\n".join(parts) + "\n"


def _link(name: str) -> str:
    return f"../../scenarios/{catalog.folder(name).parent.name}/{name}/README.md"


def _title(name: str) -> str:
    return markdown(catalog.scenario(name).title)


def _when(name: str) -> str:
    return "<br>".join(map(str, periods(name)))


def _row(story: Story, span: Span) -> list[str]:
    return [str(span), *(SIGNS.get(span.statuses[name], "?") for name in story.scenarios)]
