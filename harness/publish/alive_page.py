"""docs/alive.md: the bugs that the newest tested releases still have, from the recorded runs."""

from __future__ import annotations

from collections.abc import Iterator

from harness import catalog
from harness.ranges.alive_bugs import AliveBug, alive_bugs
from harness.system.terminal import count
from harness.system.text import LINK, markdown, markdown_table

NAME = "alive.md"
"""The page, beside docs/bugs.md."""
NOTE = "<!-- Made by `python -m harness pages`. Write nothing here. -->"


def text() -> str:
    """The page."""
    bugs = alive_bugs()
    parts = [
        "# Alive",
        NOTE,
        f"{count(len(bugs), 'bug')} of [the catalogue](bugs.md) "
        f"{'is' if len(bugs) == 1 else 'are'} in the newest release that we tested, as published. "
        "The most damaging ones come first, and among these the ones that are hardest to notice.",
        markdown_table(["scenario", "release", "harm", "visibility"], map(_row, bugs)),
        *(part for bug in bugs for part in _section(bug)),
    ]
    return "\n\n".join(parts) + "\n"


def _row(bug: AliveBug) -> list[str]:
    scenario = bug.scenario
    return [f"[`{bug.name}`](#{bug.name})", bug.release, scenario.harm, scenario.visibility]


def _section(bug: AliveBug) -> Iterator[str]:
    scenario = bug.scenario
    rows = {
        "release": bug.release,
        "trigger": bug.trigger,
        "symptom": scenario.symptom,
        "our run showed": bug.finding,
        "remedy": bug.remedy,
        "harm": f"{scenario.harm}; {scenario.visibility}",
        "command": f"`{bug.command}`",
        "does upstream know?": LINK.sub(r"<\g<0>>", bug.upstream),
        "report for upstream": _report(bug),
    }
    yield f"## {bug.name}"
    yield f"{markdown(scenario.title)}: [its page]({_folder(bug)}/README.md)."
    yield markdown_table(["", ""], [[name, markdown(text)] for name, text in rows.items() if text])


def _report(bug: AliveBug) -> str:
    """Our report and script, if upstream does not know of the bug."""
    if bug.scenario.known_upstream:
        return ""
    names = (catalog.REPORT, catalog.REPORT_SCRIPT)
    return ", ".join(f"[{name}]({_folder(bug)}/{name})" for name in names)


def _folder(bug: AliveBug) -> str:
    return f"../scenarios/{catalog.folder(bug.name).parent.name}/{bug.name}"
