"""The table of detectors, from recorded runs; what it measures is not asserted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from harness import catalog
from harness.cli import detector_table
from harness.cli.detector_table import DETECTORS
from harness.system.files import ROOT
from tests.recording import recorded


def test_each_detector_is_used_by_the_scenarios_that_are_said_to_be_its() -> None:
    folder = ROOT / "harness" / "detectors"
    assert {f.stem for f in folder.glob("*.py")} - {"__init__"} == set(DETECTORS)
    for name, detector in DETECTORS.items():
        for scenario in detector.scenarios:
            assert folder / f"{name}.py" in catalog.sources(catalog.places()[scenario])


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, str]:
    for run in ("bf16_clip", "fp16_overflow", "rope_zero_init"):
        shutil.copytree(recorded()[run], tmp_path / run)
    costs = dict.fromkeys(DETECTORS, 0.002) | {"training step": 0.1}
    page = detector_table.page(detector_table.newest(tmp_path), costs)
    return {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}


def test_a_detector_fires_where_and_when_its_runs_say(rows: dict[str, str]) -> None:
    assert "| 2.0 ms | 2.0 % | `bf16_clip` (step 1) | 0 of 3 |" in rows["replicas"]
    assert "`rope_zero_init` (before the first step) | 0 of 6 |" in rows["buffers"]
    assert "no run here |  |" in rows["state"]


def test_an_early_warning_is_false_only_where_nothing_overflowed(rows: dict[str, str]) -> None:
    expected = r"`fp16_overflow` \(step \d+, \d+ before the first nan\) \| 0 of 1 \|"
    assert re.search(expected, rows["headroom"])
