"""What ``check`` found as SARIF 2.1.0, which GitHub's code scanning and editors read.

A rule is a bug; a result says that the environment has it or may have it. docs/formats.md
describes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from harness.bugs import catalog
from harness.check.bug_status import THERE, Checked
from harness.check.check_report import Report, sentences
from harness.check.places import Place
from harness.system.installation import repository
from harness.system.machine import release_of
from harness.system.text import SCRIPT, markdown

SARIF = "2.1.0"
"""The version of the format."""
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
PROPERTIES = 1
"""The version of what ``properties`` contain; it grows when a field changes or goes."""
SEVERITIES = {"error": "error", "warning": "warning", "note": "recommendation"}
"""The words of code scanning for the levels."""

Json = dict[str, Any]


def as_sarif(report: Report) -> str:
    """The bugs that the environment has or may have, as one run of SARIF."""
    bugs = [checked for checked in report.bugs if checked.status in THERE]
    run = {
        "tool": {"driver": _driver(report, bugs)},
        "invocations": [
            {"executionSuccessful": True, "toolExecutionNotifications": _notices(report)}
        ],
        "results": [_result(report, n, checked) for n, checked in enumerate(bugs)],
        "properties": {"version": PROPERTIES, "where": report.environment.where},
    }
    return json.dumps({"$schema": SCHEMA, "version": SARIF, "runs": [run]}, indent=1)


def _driver(report: Report, bugs: Sequence[Checked]) -> Json:
    address, version = repository(), release_of(SCRIPT)
    return {
        "name": SCRIPT,
        **({"version": version} if version else {}),
        **({"informationUri": address} if address else {}),
        "rules": [_rule(report, checked) for checked in bugs],
    }


def _rule(report: Report, checked: Checked) -> Json:
    scenario = catalog.scenario(checked.scenario)
    command = f"python -m harness show {checked.scenario}"
    hint = f"Only with {markdown(scenario.trigger)}. More: {command}"
    return {
        "id": checked.scenario,
        "shortDescription": {"text": scenario.title},
        "fullDescription": {"text": f"{scenario.title}: {markdown(scenario.symptom)}"},
        "help": {"text": hint},
        "properties": {
            "tags": [scenario.harm, scenario.visibility],
            "precision": "very-high" if checked.how else "low",
            "problem.severity": SEVERITIES[report.level(checked)],
        },
    }


def _result(report: Report, index: int, checked: Checked) -> Json:
    subject, place = catalog.subject(checked.scenario), report.place(checked)
    accepted = checked.accepted
    return {
        "ruleId": checked.scenario,
        "ruleIndex": index,
        "level": report.level(checked),
        "message": {"text": sentences(checked)},
        "locations": [_location(place)] if place else [],
        "partialFingerprints": {"bugOfPackage/v1": f"{checked.scenario}:{subject}"},
        "suppressions": (
            [{"kind": "external", "status": "accepted", "justification": str(accepted)}]
            if accepted
            else []
        ),
        "properties": {
            "status": f"{checked.status}, accepted" if accepted else str(checked.status),
            "how": checked.how,
            "releases": dict(checked.releases),
            "remedy": checked.remedy,
            "command": checked.command,
        },
    }


def _location(place: Place) -> Json:
    """A path inside the working folder is relative to it: code scanning needs that."""
    file = Path(os.path.normpath(place.file))
    file = file.absolute() if file.parts[:1] == ("..",) else file
    path = quote_from_bytes(os.fsencode(os.path.normpath(file)))
    uri = f"file://{path}" if file.is_absolute() else path
    region = {"region": {"startLine": place.line}} if place.line else {}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **region}}


def _notices(report: Report) -> list[Json]:
    """What was not looked up, what cannot be used, and what is no longer accepted."""
    lines = [
        *(("note", note, report.places.of_note(note)) for note in report.remarks),
        *(("error", refusal, None) for refusal in report.refusals),
        *(("warning", note, report.places.of_note(note)) for note in report.notes),
    ]
    return [
        {"level": level, "message": {"text": text}, "locations": [_location(p)] if p else []}
        for level, text, p in lines
    ]
