"""What ``check`` found as annotations of GitHub: commands that a job prints on its log."""

from __future__ import annotations

from collections.abc import Iterator

from harness.bugs import catalog
from harness.check.bug_status import THERE
from harness.check.check_report import Report, in_words, level, sentences
from harness.check.places import Place, Places
from harness.check.synonyms import named_in
from harness.system.text import harmless

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
"""GitHub's commands for the levels of bugs."""


def github_annotations(report: Report) -> Iterator[str]:
    """An annotation for each bug, at the line that names its package. An accepted bug is a notice.

    What was not looked up comes first, as notices. Lines about accepted bugs come last, as
    warnings.
    """
    places = Places(report.environment)
    for note in (*report.remarks, *report.refusals):
        yield _annotation("notice", places.of_note(note), "check", note)
    for checked in report.bugs:
        if checked.status in THERE:
            command = COMMANDS[level(checked, report.settings)]
            place = places.of_package(named_in([catalog.subject(checked.scenario)]))
            title = f"{checked.scenario}: {in_words(checked, report.settings)}"
            yield _annotation(command, place, title, sentences(checked))
    for note in report.notes:
        yield _annotation("warning", places.of_package([]), "accepted bugs", note)


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
