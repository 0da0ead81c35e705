"""The report of a nightly: on the terminal, as Markdown for a job's summary, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console

from harness.bugs.api.spec import Verdict
from harness.bugs.results import CellJson
from harness.publish import changes
from harness.publish.history import Change, why
from harness.publish.steps import Watch
from harness.system.files import write_whole, writing
from harness.system.terminal import table
from harness.system.text import count, markdown_escaped, markdown_table, short

COLUMNS = ["scenario", "package", "release", "of", "status", "changed", "why not certain"]
OURS = ["scenario", "verdict", "seconds", "why"]


def show(console: Console, summary: Watch) -> None:
    """Print a table of the results, then the changes, with changes for the worse last."""
    console.print()
    if rows := _rows(summary):
        console.print(table("", COLUMNS, rows))
        console.print()
    for note in summary.notes:
        console.print(note)
    for change in sorted(summary.nightly.changes, key=lambda change: change.is_worse):
        console.print(f"{change.message}\n", style="red" if change.is_worse else "")
    console.print(headline(summary), style="bold")


def headline(summary: Watch) -> str:
    """One line: which nightly, how much it tested, and what changed."""
    news = summary.nightly.changes
    verdicts = [done.result.verdict for done in summary.nightly.ours.values()]
    kinds = ", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts)
    ours = f"{count(len(verdicts), 'scenario')} of ours" + (f" ({kinds})" if kinds else "")
    parts = [f"{count(len(summary.nightly.tested), 'release')} tested", ours]
    parts.append(count(len(news), "change") if news else "no change")
    if news:
        parts.append(f"{sum(change.is_worse for change in news) or 'none'} for the worse")
    parts.append(f"{summary.seconds:.0f} s")
    return f"nightly of {summary.nightly.day}: {', '.join(parts)}"


def _rows(summary: Watch) -> list[list[str]]:
    again, news = {result.key for result in summary.again}, summary.nightly.changes
    days = {key: release.day for key, release in summary.history.releases.items()}
    return [
        [
            result.cell.scenario,
            result.package,
            result.version,
            days.get((result.package, result.version), ""),
            str(result.cell.status),
            ", ".join(c.kind for c in news if (c.scenario, c.package, c.version) == result.key),
            "" if result.cell.status.certain else short(result.cell.reason),
        ]
        for result in summary.nightly.results
        if result.key not in again
    ]


Make = Callable[[Watch], str]


def write(summary: Watch, files: Mapping[Make, Path | None]) -> None:
    """Write each report that has a file."""
    for make, file in files.items():
        if file:
            with writing(file, "file"):
                write_whole(file, make(summary))


def markdown(summary: Watch) -> str:
    """The nightly for a job's summary, or a comment."""
    lines = [f"## {headline(summary)}", ""]
    for title, is_worse in (("Worse", True), ("Changed", False)):
        if news := [c for c in summary.nightly.changes if c.is_worse is is_worse]:
            lines += [f"### {title}", ""]
            lines += [line for c in news for line in (f"- {_paragraph(c.message)}", "")]
    for note in summary.notes:
        lines += [f"- {markdown_escaped(note)}", ""]
    if rows := _rows(summary):
        lines += ["### Releases tested", "", _table(COLUMNS, rows), ""]
    if summary.nightly.ours:
        ours = [
            [name, str(done.result.verdict), f"{done.seconds:.1f}", short(why(done.result))]
            for name, done in summary.nightly.ours.items()
        ]
        lines += ["### Our own scenarios", "", _table(OURS, ours), ""]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(columns, [[markdown_escaped(cell) for cell in row] for row in rows])


def _paragraph(text: str) -> str:
    """The message of a change, with its command as code."""
    why, see, command = text.partition(changes.SEE)
    return f"{markdown_escaped(why)} {see.strip()} `{command}`" if see else markdown_escaped(text)


SCHEMA = 4
"""The version of the JSON, docs/schemas/watch.json; it rises when a key changes its name or
meaning."""


class NightlyJson(TypedDict):
    """When and where a nightly ran."""

    day: str
    started: str
    ended: str | None
    facts: dict[str, Any]


class TestedJson(CellJson):
    """A release that was tested: its cell, and which package the nightly was about."""

    package: str
    version: str


class ScenarioJson(TypedDict):
    """One of our own scenarios."""

    scenario: str
    verdict: str
    seconds: float
    run: str | None


class WatchJson(TypedDict):
    """What ``watch --json`` writes: the results of a nightly."""

    schema: int
    nightly: NightlyJson
    tested: list[TestedJson]
    ours: list[ScenarioJson]
    changes: list[Change]
    notes: list[str]
    seconds: float
    exit_code: int


def as_json(summary: Watch) -> str:
    """All results of the nightly, as JSON."""
    nightly = summary.nightly
    content: WatchJson = {
        "schema": SCHEMA,
        "nightly": {
            "day": nightly.day,
            "started": nightly.started,
            "ended": nightly.ended,
            "facts": dict(nightly.facts),
        },
        "tested": [
            {"package": r.package, "version": r.version, **r.cell.of_releases()}
            for r in nightly.results
        ],
        "ours": [
            {
                "scenario": name,
                "verdict": done.result.verdict,
                "seconds": round(done.seconds, 2),
                "run": str(done.folder) if done.folder else None,
            }
            for name, done in nightly.ours.items()
        ],
        "changes": nightly.changes,
        "notes": [*summary.problems, *summary.failed],
        "seconds": round(summary.seconds, 1),
        "exit_code": summary.exit_code,
    }
    return json.dumps(content, indent=1, default=asdict) + "\n"
