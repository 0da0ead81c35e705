"""What the command learns of its ranks, whatever happens to the folder of the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.cli.guard import Findings
from harness.rank.guard.posting.posts import Alarm
from harness.rank.guard.reporting.report import Report
from harness.rank.guard.reporting.report_files import ALARMS, SUMMARY
from harness.rank.guard.settings import VARIABLE, Settings

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


def test_alarms_of_an_earlier_training_are_none(run: Path, out: Path) -> None:
    findings = Findings(run, out)
    assert not findings.has_alarm()
    Report(Settings(out=str(out))).tell(1, 0, [ALARM])
    assert findings.has_alarm()


def test_a_folder_that_vanishes_is_no_alarm(run: Path, out: Path) -> None:
    findings = Findings(run, out)
    shutil.rmtree(out)
    assert not findings.has_alarm()
    assert not findings.has_bug()


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
def test_an_alarm_that_cannot_be_written_is_one(run: Path, out: Path, becomes: str) -> None:
    findings, report = Findings(run, out), Report(Settings(out=str(out)))
    shutil.rmtree(out)
    if becomes == "a file":
        out.write_text("")
    report.tell(1, 0, [ALARM])
    assert findings.has_alarm()


def test_an_alarm_of_a_rank_without_our_folder_is_in_the_report(
    out: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one on another machine."""
    findings = Findings(run, out)
    monkeypatch.setenv(VARIABLE, "/nowhere/settings.json")
    Report(Settings(out=str(out))).tell(1, 0, [ALARM])
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
