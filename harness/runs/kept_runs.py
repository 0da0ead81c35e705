"""Runs that are kept in the folder of their scenario: evidence from GPUs, as JSON in ``evidence``,
and the recorded run on the CPU, which can be graded again, in ``recorded.tar.xz``."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import catalog
from harness.api.spec import BUGGY

RECORDED = "recorded.tar.xz"
"""The run folder of a recorded run, without logs and checkpoints."""


@contextmanager
def recorded(scenario: str) -> Iterator[Path | None]:
    """The folder of a scenario's recorded run, until the context ends; None if it has none."""
    file = catalog.folder(scenario) / RECORDED
    if not file.is_file():
        yield None
        return
    with TemporaryDirectory(prefix=f"{scenario}-") as temporary:
        folder = Path(temporary, "recorded")
        with tarfile.open(file) as tar:
            tar.extractall(folder, filter="data")
        yield folder


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
