"""What ``check`` found as Markdown: for the summary of a CI job, or a comment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.bugs import catalog
from harness.check.bug_status import THERE, Checked, advice
from harness.check.check_report import (
    Report,
    headline,
    in_words,
    needs_settings,
    releases_of,
    summary,
)
from harness.check.places import Place, Places
from harness.check.synonyms import named_in
from harness.system.text import markdown_escaped, markdown_table

COLUMNS = ("bug", "status", "harm", "what happens", "only with", "remedy", "place")


def as_markdown(report: Report) -> str:
    """A heading with the answer, the releases, and a table of the bugs.

    Bugs that only some settings set off are in a part that opens with a click.
    """
    return "\n\n".join(filter(None, _paragraphs(report))) + "\n"


def _paragraphs(report: Report) -> Iterator[str]:
    settings, places = report.settings, Places(report.environment)
    open_bugs = [checked for checked in report.bugs if checked.counts]
    conditional_bugs = [checked for checked in open_bugs if needs_settings(checked, settings)]
    certain_bugs = [checked for checked in open_bugs if checked not in conditional_bugs]
    accepted_bugs = [c for c in report.bugs if c.accepted and c.status in THERE]
    yield f"## distributed-bugs: {headline(open_bugs, settings)}"
    yield "<br>".join(map(markdown_escaped, releases_of(report.environment)))
    yield _table(certain_bugs, report, places)
    yield _folded("Bugs that depend on settings", conditional_bugs, report, places)
    yield _folded("Accepted bugs", accepted_bugs, report, places)
    yield "\n".join(f"- {markdown_escaped(str(line))}" for line in advice(report.bugs, settings))
    lines = (*report.remarks, *report.refusals, *report.notes)
    yield "\n".join(f"- {markdown_escaped(line)}" for line in lines)
    yield summary(report.bugs, report.settings)


def _folded(title: str, bugs: Sequence[Checked], report: Report, places: Places) -> str:
    if not bugs:
        return ""
    begin = f"<details><summary>{title}: {len(bugs)}</summary>"
    return f"{begin}\n\n{_table(bugs, report, places)}\n\n</details>"


def _table(bugs: Sequence[Checked], report: Report, places: Places) -> str:
    rows = [list(map(markdown_escaped, _row(checked, report, places))) for checked in bugs]
    return markdown_table(COLUMNS, rows) if rows else ""


def _row(checked: Checked, report: Report, places: Places) -> list[str]:
    scenario = catalog.scenario(checked.scenario)
    words = in_words(checked, report.settings)
    return [
        checked.scenario,
        f"{words}: {checked.accepted}" if checked.accepted else words,
        scenario.harm,
        scenario.title,
        scenario.trigger,
        checked.remedy,
        _place_text(places.of_package(named_in([catalog.subject(checked.scenario)]))),
    ]


def _place_text(place: Place | None) -> str:
    if place is None:
        return ""
    return f"{place.file}, line {place.line}" if place.line else str(place.file)
