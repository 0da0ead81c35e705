"""The files of a report: whole after a kill, small after a long training, one for each run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.rank.guard.posting.posts import Alarm
from harness.rank.guard.reporting.report import MOST_PARAMETERS, MOST_STEPS, Report
from harness.rank.guard.reporting.report_files import ReportFiles
from harness.rank.guard.settings import Settings
from harness.training.guard import report as reports
from tests.guard.trainer import Trainer
from tests.schemas import complaints


def files(folder: Path) -> ReportFiles:
    """The files of a new run."""
    run = ReportFiles(str(folder))
    run.begin()
    return run


def summary(folder: Path, name: str = "summary.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text())


@pytest.mark.slow
@pytest.mark.launch
def test_a_report_has_its_schemas(under_guard: Trainer) -> None:
    run = under_guard("ddp never_cleared", steps=8)

    facts = {"releases", "settings"}  # are there after the first check
    assert complaints("guard_summary.json", run.summary) == []
    assert set(run.summary) >= facts
    assert complaints("guard_alarm.json", run.alarms[0]) == []
    assert complaints("guard_alarm.json", {**run.alarms[0], "step": "one"})


def test_each_run_keeps_its_summary(tmp_path: Path) -> None:
    for steps in (1, 2, 3):
        run = files(tmp_path)
        run.write({"steps": 0})
        run.write({"steps": steps})
    assert {path.name: summary(tmp_path, path.name)["steps"] for path in tmp_path.iterdir()} == {
        "summary-1.json": 1,
        "summary-2.json": 2,
        "summary.json": 3,
    }


def test_two_runs_at_once_do_not_replace_each_other(tmp_path: Path) -> None:
    earlier = files(tmp_path)
    earlier.write({"steps": 1})
    second = files(tmp_path)
    second.write({"steps": 20})
    earlier.write({"steps": 2})
    second.write({"steps": 21})
    earlier.write({"steps": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary-1.json", "summary.json"]
    assert summary(tmp_path)["steps"] == 21
    assert summary(tmp_path, "summary-1.json")["steps"] == 3


def test_folder_that_cannot_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ReportFiles(str(tmp_path / "absent"))
    for _ in range(3):
        run.begin()
        run.write({})
        run.append({})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("guard: the report cannot be written: No such file or directory: ")


def test_line_after_one_that_was_cut_is_whole(tmp_path: Path) -> None:
    run = files(tmp_path)
    (tmp_path / "alarms.jsonl").write_text('{"step": 1}\n{"st')
    run.append({"step": 2})
    lines = (tmp_path / "alarms.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"st']
    assert json.loads(lines[2])["step"] == 2


def test_report_of_a_long_training_is_small(tmp_path: Path) -> None:
    report = Report(Settings(out=str(tmp_path), quiet=True))
    for step in range(1, 100_001):
        report.note_check(step)
    assert report.checks == 100_000
    assert list(report.steps) == list(range(100_001 - MOST_STEPS, 100_001))

    names = [f"layer.{number}" for number in range(100_000)]
    report.tell(1, 0, [Alarm("replicas", "differ", "not equal", [0], 1.0, names)])
    (alarm,) = map(json.loads, (tmp_path / "alarms.jsonl").read_text().splitlines())
    assert len(alarm["parameters"]) == MOST_PARAMETERS
    assert alarm["run"] == report.files.run


@pytest.mark.launch
def test_killed_training_leaves_its_summary(under_guard: Trainer) -> None:
    run = under_guard("ddp", steps=12, request={"harm": "all_ranks_are_killed"})

    assert run.codes == [-signal.SIGKILL] * 2
    assert run.summary["ended"] is False
    assert run.summary["steps"] >= 5
    assert run.summary["checked"][:5] == [1, 2, 3, 4, 5]
    assert run.summary["releases"]["torch"]
    (line,) = reports.lines(reports.read(under_guard.folder / str(under_guard.count)))[:1]
    assert "; no alarm; the training was killed, or runs still: this was written at 2" in line


@pytest.mark.slow
@pytest.mark.launch
def test_training_that_ended_says_so(under_guard: Trainer) -> None:
    run = under_guard("ddp", steps=6)
    assert run.summary["ended"] is True
    assert run.summary["steps"] == 6
