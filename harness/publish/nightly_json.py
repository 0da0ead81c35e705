"""What ``watch --json`` writes; docs/schemas/watch.json is made from these types."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypedDict

from harness.bugs.results import CellJson
from harness.publish.history import Change
from harness.publish.steps import Watch

SCHEMA = 3
"""The version of the JSON; it rises when a key changes its name or meaning."""


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
    confirmed: int
    changes: list[Change]
    notes: list[str]
    seconds: float
    exit_code: int


def as_json(watched: Watch) -> str:
    """All results of the nightly, as JSON."""
    nightly = watched.nightly
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
        "confirmed": len(nightly.confirmed),
        "changes": nightly.changes,
        "notes": [*watched.problems, *watched.failed],
        "seconds": round(watched.seconds, 1),
        "exit_code": watched.exit_code,
    }
    return json.dumps(content, indent=1, default=asdict) + "\n"
