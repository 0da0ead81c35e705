"""The bugs as OSV records, a format for advisories that other tools read.

A record's events are tested releases: nothing in it comes from a report. The format is described at
https://ossf.github.io/osv-schema/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import catalog, commits, remedies, result_file
from harness.bugs.api.settings import in_words
from harness.bugs.api.spec import BUGGY, Scenario
from harness.bugs.commits import BugCommit
from harness.bugs.periods import Period, alive, periods, tested
from harness.bugs.results import Result, Status
from harness.system.errors import Inconclusive
from harness.system.text import LINK, markdown

SCHEMA = "1.7.4"
"""The version of the format."""
PREFIX = "x_distributed-bugs-"
"""The prefix of every id. The format reserves ``x_`` for databases that are not registered."""
NOTE = (
    "All events are tested releases; `versions` lists the affected ones. A release between two "
    "events may not have been tested itself."
)

Record = dict[str, Any]


def files() -> dict[str, str]:
    """The record of each bug that a tested release has, as JSON by file name."""
    names = [name for name in catalog.sound() if periods(name)]
    return {
        file_name(name): json.dumps(record(name), indent=1, ensure_ascii=False) + "\n"
        for name in names
    }


def file_name(name: str) -> str:
    """The name of a bug's file."""
    return f"{PREFIX}{name}.json"


def without() -> dict[str, str]:
    """The bugs without a record, and why."""
    return {name: _why_not(name) for name in catalog.sound() if not periods(name)}


def _why_not(name: str) -> str:
    if catalog.scenario(name).variant(BUGGY).defects:
        return "only an edit puts it into a release"
    return "no tested release has it" if result_file.statuses(name) else "no release was tested"


def record(name: str) -> Record:
    """The OSV record of a bug. Raises Inconclusive if no tested release has it."""
    scenario, spans, cells = catalog.scenario(name), periods(name), result_file.statuses(name)
    if not spans:
        raise Inconclusive(f"no tested release has {name}")
    days, bug = sorted(cell.first_day for cell in cells), alive(name)
    return {
        "schema_version": SCHEMA,
        "id": PREFIX + name,
        "published": f"{days[0]}T00:00:00Z",
        "modified": f"{days[-1]}T00:00:00Z",
        "summary": scenario.title,
        "details": _details(name, scenario),
        "affected": [
            {
                "package": {
                    "ecosystem": "PyPI",
                    "name": scenario.subject,
                    "purl": f"pkg:pypi/{scenario.subject}",
                },
                "ranges": [
                    *({"type": "ECOSYSTEM", "events": _events(period)} for period in spans),
                    *map(_commits, commits.spans(name)),
                ],
                "versions": [v for v, s in tested(name).items() if s is Status.AFFECTED],
            }
        ],
        "references": list(_references(scenario)),
        "database_specific": {
            "scenario": name,
            "harm": scenario.harm,
            "visibility": scenario.visibility,
            "trigger": scenario.trigger,
            "settings": in_words(scenario.settings),
            "remedy": remedies.of(name),
            "known_upstream": scenario.known_upstream,
            "known_in_part": scenario.known_in_part,
            "alive": bug and {"release": bug.release, "trigger": bug.trigger},
            "runs": _runs(scenario, cells),
        },
    }


def _details(name: str, scenario: Scenario) -> str:
    paragraphs = (" ".join(part.split()) for part in catalog.story(name).split("\n\n"))
    notes = (f"Only with {scenario.trigger}.", f"Remedy: {remedies.of(name)}.", NOTE)
    return markdown("\n\n".join([*paragraphs, *notes]))


def _events(period: Period) -> list[dict[str, str]]:
    """The events of a period; it has no end if the newest release with a certain status has it."""
    begin = {"introduced": period.first}
    if period.alive:
        return [begin]
    return [begin, {"fixed": period.after} if period.after else {"last_affected": period.last}]


def _commits(span: tuple[BugCommit, BugCommit | None]) -> Record:
    """The commits between which a repository has the bug."""
    begin, end = span
    events = [{"introduced": begin.commit}, *([{"fixed": end.commit}] if end else [])]
    return {"type": "GIT", "repo": begin.repository, "events": events}


def _references(scenario: Scenario) -> Iterator[dict[str, str]]:
    """Links to the report and to the fix. For a bug that upstream does not know, a report is only
    related."""
    kind = "REPORT" if scenario.known_upstream else "WEB"
    for link in LINK.findall(" ".join(scenario.report)):
        yield {"type": kind, "url": link}
    for link in LINK.findall(scenario.fix):
        yield {"type": "FIX", "url": link}


def _runs(scenario: Scenario, cells: Sequence[Result]) -> list[Record]:
    """What was run: each tested release with its status, its day and its environment."""
    return [
        {
            "version": cell.pins[scenario.subject],
            "status": str(cell.status),
            "date": cell.first_day,
            "lane": cell.lane,
            "python": cell.python,
            "torch": cell.torch,
            "with": {p: v for p, v in cell.pins.items() if p != scenario.subject},
        }
        for cell in cells
    ]
