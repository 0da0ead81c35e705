"""Evidence: runs that are kept as JSON in the folder ``evidence`` of their scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness import catalog
from harness.spec import BUGGY


def kept(scenario: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The evidence of a scenario, by name: run.json with the graded result; newest first."""
    files = (catalog.folder(scenario) / "evidence").glob("*.json")
    found = [(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return sorted(found, key=lambda each: str(each[1]["started"]), reverse=True)


def insufficient_checks(content: Mapping[str, Any]) -> Mapping[str, bool]:
    """The insufficient checks of a kept run, and whether each fired in the buggy variant."""
    for trial in content["result"]["trials"]:
        if trial["variant"] == BUGGY and trial["insufficient_checks"]:
            return dict(trial["insufficient_checks"])
    return {}
