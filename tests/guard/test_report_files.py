"""The files of a report: whole after a kill, small after a long training, one for each run."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from harness.cli.guard import Findings
from harness.rank.guard.posting.posts import Alarm
from harness.rank.guard.reporting.report import MOST_PARAMETERS, MOST_STEPS, FaultReport
from harness.rank.guard.reporting.report_files import ALARMS, SUMMARY, ReportFiles
from harness.rank.guard.settings import VARIABLE, Settings
from harness.training.guard import report as reports
from tests.guard.trainer import Trainer, summary_of
from tests.schemas import complaints


def files(folder: Path) -> ReportFiles:
    """The files of a new run."""
    run = ReportFiles(str(folder))
    run.begin()
    return run


@pytest.mark.slow
@pytest.mark.launch
def test_a_report_has_its_schemas_and_says_that_the_training_ended(under_guard: Trainer) -> None:
    run = under_guard("ddp never_cleared", steps=8)

    assert (run.summary["ended"], run.summary["steps"]) == (True, 8)
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
    assert {path.name: summary_of(tmp_path, path.name)["steps"] for path in tmp_path.iterdir()} == {
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
    assert summary_of(tmp_path)["steps"] == 21
    assert summary_of(tmp_path, "summary-1.json")["steps"] == 3


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
    report = FaultReport(Settings(out=str(tmp_path), quiet=True))
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


# -- what the command learns of its ranks, whatever happens to the folder --

ALARM = Alarm("replicas", "differ", "not equal", [1], 1.0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a command, with its settings."""
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setenv(VARIABLE, str(run / "settings.json"))
    return run


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a report, with an alarm of an earlier training."""
    out = tmp_path / "out"
    out.mkdir()
    (out / ALARMS).write_text("{}\n")
    return out


def test_a_folder_that_vanishes_is_no_alarm(run: Path, out: Path) -> None:
    findings = Findings(run, out)
    shutil.rmtree(out)
    assert not findings.has_alarm()
    assert not findings.has_bug()


@pytest.mark.parametrize("becomes", ["a folder", "nothing", "a file", "of another machine"])
def test_an_alarm_is_one_wherever_it_is_written_and_one_of_an_earlier_training_is_none(
    run: Path, out: Path, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings, report = Findings(run, out), FaultReport(Settings(out=str(out)))
    assert not findings.has_alarm()
    if becomes in ("nothing", "a file"):
        shutil.rmtree(out)
    if becomes == "a file":
        out.write_text("")
    if becomes == "of another machine":  # whose ranks have the folder of the report alone
        monkeypatch.setenv(VARIABLE, "/nowhere/settings.json")
    report.tell(1, 0, [ALARM])
    assert findings.has_alarm()


@pytest.mark.parametrize(
    ("text", "has_bug"),
    [
        (json.dumps({"known_bugs": [{"certain": True}]}), True),
        (json.dumps({"known_bugs": [{"certain": False}]}), False),
        ("{", False),
        ("[]", False),
        ('{"known_bugs": [1]}', False),
    ],
)
def test_a_damaged_summary_names_no_bug(run: Path, out: Path, text: str, has_bug: bool) -> None:
    findings = Findings(run, out)
    (out / SUMMARY).write_text(text)
    assert findings.has_bug() is has_bug
