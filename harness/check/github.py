"""The report of ``check`` for GitHub: annotations, which are commands that a job prints on its log,
and Markdown, for the summary of a job or a comment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.bugs import catalog
from harness.check.bug_status import THERE, Checked
from harness.check.check_report import Report, releases_of, sentences
from harness.check.places import Place
from harness.system.text import harmless, markdown_escaped, markdown_table

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
"""GitHub's commands for the levels of bugs."""


def github_annotations(report: Report) -> Iterator[str]:
    """An annotation for each bug, at the line that names its package. An accepted bug is a notice.

    What was not looked up comes first, as notices. Lines about accepted bugs come last, as
    warnings.
    """
    for note in (*report.remarks, *report.refusals):
        yield _annotation("notice", report.places.of_note(note), "check", note)
    for checked in report.bugs:
        if checked.status in THERE:
            command = COMMANDS[report.level(checked)]
            title = f"{checked.scenario}: {report.in_words(checked)}"
            yield _annotation(command, report.place(checked), title, sentences(checked))
    for note in report.notes:
        yield _annotation("warning", report.places.of_note(note), "accepted bugs", note)


def _annotation(command: str, place: Place | None, title: str, text: str) -> str:
    """One command of a workflow. GitHub needs paths relative to the folder where the job runs."""
    line = f"line={place.line}," if place and place.line else ""
    where = f"file={_escaped(str(place.file), ':,')},{line}" if place else ""
    return f"::{command} {where}title={_escaped(title, ':,')}::{_escaped(text)}"


def _escaped(text: str, specials: str = "") -> str:
    """Escape a text for GitHub's workflow commands."""
    for character in "%\r\n" + specials:
        text = text.replace(character, f"%{ord(character):02X}")
    return harmless(text)


COLUMNS = ("bug", "status", "harm", "what happens", "only with", "remedy", "place")


def as_markdown(report: Report) -> str:
    """A heading with the answer, the releases, and a table of the bugs.

    Bugs that only some settings set off are in a part that opens with a click.
    """
    return "\n\n".join(filter(None, _paragraphs(report))) + "\n"


def _paragraphs(report: Report) -> Iterator[str]:
    conditional_bugs = [checked for checked in report.open_bugs if report.needs_settings(checked)]
    certain_bugs = [checked for checked in report.open_bugs if checked not in conditional_bugs]
    yield f"## distributed-bugs: {report.headline()}"
    yield "<br>".join(map(markdown_escaped, releases_of(report.environment)))
    yield _table(certain_bugs, report)
    yield _folded("Bugs that depend on settings", conditional_bugs, report)
    yield _folded("Accepted bugs", report.accepted_bugs, report)
    yield "\n".join(f"- {markdown_escaped(str(line))}" for line in report.advice)
    lines = (*report.remarks, *report.refusals, *report.notes)
    yield "\n".join(f"- {markdown_escaped(line)}" for line in lines)
    yield report.summary()


def _folded(title: str, bugs: Sequence[Checked], report: Report) -> str:
    if not bugs:
        return ""
    begin = f"<details><summary>{title}: {len(bugs)}</summary>"
    return f"{begin}\n\n{_table(bugs, report)}\n\n</details>"


def _table(bugs: Sequence[Checked], report: Report) -> str:
    rows = [list(map(markdown_escaped, _row(checked, report))) for checked in bugs]
    return markdown_table(COLUMNS, rows) if rows else ""


def _row(checked: Checked, report: Report) -> list[str]:
    scenario = catalog.scenario(checked.scenario)
    words = report.in_words(checked)
    return [
        checked.scenario,
        f"{words}: {checked.accepted}" if checked.accepted else words,
        scenario.harm,
        scenario.title,
        scenario.trigger,
        checked.remedy,
        str(report.place(checked) or ""),
    ]
