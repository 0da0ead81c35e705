"""What ``watch --json`` writes; docs/schemas/watch.json is made from these types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from harness.bugs.results import CellJson
from harness.publish.history_rows import Change, NightlyKind
from harness.publish.steps import Summary
from harness.system.errors import ExitCode

SCHEMA = 2
"""The version of the JSON; it rises when a key changes its name or meaning."""


class NightlyJson(TypedDict):
    """When and where a nightly ran."""

    kind: NightlyKind
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


class SummaryJson(TypedDict):
    """The results of a nightly."""

    nightly: NightlyJson
    tested: list[TestedJson]
    ours: list[ScenarioJson]
    confirmed: int
    changes: list[Change]
    notes: list[str]
    seconds: float
    exit_code: int


class WatchJson(TypedDict):
    """What ``watch --json`` writes: several nightlies if days were replayed."""

    schema: int
    nightlies: list[SummaryJson]
    exit_code: int


def as_json(summaries: Sequence[Summary]) -> str:
    """All results of the nightlies, as JSON."""
    content: WatchJson = {
        "schema": SCHEMA,
        "nightlies": [_summary(summary) for summary in summaries],
        "exit_code": ExitCode.worst(summary.exit_code for summary in summaries),
    }
    return json.dumps(content, indent=1, default=asdict) + "\n"


def _summary(summary: Summary) -> SummaryJson:
    nightly = summary.nightly
    return {
        "nightly": {
            "kind": nightly.kind,
            "day": nightly.day,
            "started": nightly.started,
            "ended": nightly.ended,
            "facts": dict(nightly.facts),
        },
        "tested": [
            {"package": r.package, "version": r.version, **r.cell.of_releases()}
            for r in summary.results
        ],
        "ours": [
            {
                "scenario": o.scenario,
                "verdict": o.verdict,
                "seconds": round(o.seconds, 2),
                "run": o.run,
            }
            for o in summary.scenarios
        ],
        "confirmed": summary.confirmed,
        "changes": list(summary.changes),
        "notes": list(summary.notes),
        "seconds": round(summary.seconds, 1),
        "exit_code": summary.exit_code,
    }
