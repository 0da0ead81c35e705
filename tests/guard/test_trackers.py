"""What guard sends to the trackers of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from harness.rank.guard.reporting import trackers
from harness.rank.guard.reporting.trackers import Trackers
from harness.system.files import ROOT
from tests.guard.trainer import summary_of
from tests.overlays import lent_packages

NUMBERS = {"guard/alarms": 1.0, "guard/cost_percent": 0.5, "guard/check_ms": 9.0}
PACKAGES = {"tensorboard": "2.21.0", "wandb": "0.31.0"}
TEXT = (
    "step 1, rank 0: accumulation: the step counts the loss 2 times instead of once: as often as "
    "there are micro-batches (2 micro-batches, 1 rank)"
)


@pytest.fixture(autouse=True)
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*trackers.WRITERS, "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A run of wandb."""
    run = Mock()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))  # type: ignore[arg-type]
    return run


def test_run_without_trackers_imports_nothing() -> None:
    before = set(sys.modules)
    all_of_them = Trackers()
    all_of_them.send(3, NUMBERS, ["a fault"])
    assert set(sys.modules) == before


def test_numbers_are_sent_now_and_then_and_alarms_at_once(run: Mock) -> None:
    all_of_them = Trackers()
    for _ in range(10):
        all_of_them.send(3, NUMBERS, [])
    all_of_them.send(3, NUMBERS, ["a fault"])
    all_of_them.send(3, NUMBERS, [])
    all_of_them.send(3, NUMBERS, [], is_last=True)
    numbers = call.log(NUMBERS, commit=False)
    assert run.mock_calls == [numbers, numbers, call.alert("guard", "a fault"), numbers]


class Writer:
    """A writer of TensorBoard."""

    def __init__(self, is_open: bool = True) -> None:
        self.file_writer = "a file" if is_open else None
        self.texts: list[str] = []

    def add_scalar(self, *_: Any) -> None: ...

    def flush(self) -> None: ...

    def add_text(self, _: str, text: str, step: int) -> None:
        self.texts.append(text)


def test_module_of_that_name_that_has_no_run_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*trackers.WRITERS, "wandb"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())  # type: ignore[arg-type]
    all_of_them = Trackers()
    all_of_them.send(3, NUMBERS, ["a fault"])
    assert all_of_them.notes == []


def test_tracker_that_raises_gets_nothing_more_and_others_go_on(
    run: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log.side_effect = OSError("no network")
    module: Any = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, trackers.WRITERS[0], module)
    writers = [Writer(is_open=False), Writer()]
    all_of_them = Trackers()
    all_of_them.send(3, NUMBERS, ["a"])
    all_of_them.send(3, NUMBERS, ["b"])
    assert all_of_them.notes == ["Weights & Biases gets nothing more: OSError: no network"]
    assert [writer.texts for writer in writers] == [[], ["a", "b"]]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the real trackers have after a training with a fault."""
    folder = tmp_path_factory.mktemp("tracked")
    names = ("tensorboard", "wandb")
    with lent_packages("2026-11-20", **PACKAGES) as overlay:
        quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        ending = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "tracked.py"), str(folder), *names],
            env={**os.environ, **quiet, "PYTHONPATH": f"{ROOT}:{overlay.site}"},
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert ending.returncode == 0, ending.stderr
    return {**json.loads(ending.stdout.splitlines()[-1]), "summary": summary_of(folder)}


@pytest.mark.slow
@pytest.mark.launch
def test_tensorboard_has_alarms_beside_the_scripts_numbers(tracked: dict[str, Any]) -> None:
    board = tracked["tensorboard"]
    assert set(board["names"]) == {"loss", *NUMBERS}
    assert board["alarms"] == [TEXT]
    assert board["last"] == 1
    assert board["steps"] == [0, *range(8)]
    assert board["files"] == 1
    assert tracked["summary"]["notes"] == []


@pytest.mark.slow
@pytest.mark.launch
def test_wandb_has_numbers_and_its_own_count_of_steps(tracked: dict[str, Any]) -> None:
    assert set(tracked["wandb"]["names"]) == {"loss", *NUMBERS}
    assert tracked["wandb"]["last"] == 1
    assert tracked["wandb"]["steps"] == 8
