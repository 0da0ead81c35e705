"""Evidence of a run: a whole file or none, and only for the record of a run."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.__main__ import main
from harness.bugs import catalog, result_file
from harness.bugs.api.spec import Verdict
from harness.publish import gpu_evidence
from harness.publish.inputs import kept_evidence
from harness.system.files import ROOT
from tests.recording import Recording, changing

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(folders: Path) -> Path:
    return folders / "deepspeed" / "bf16_clip" / result_file.FILE


def test_a_run_is_kept_with_all_its_trials(
    recording: Recording, file: Path, capsys: Capture
) -> None:
    for _ in range(2):  # the newest run of a name is shown
        assert main(["evidence", str(recording.folder), "h200x2"]) == 0
        kept = capsys.readouterr().out
        assert re.fullmatch(r"\d+ trials of bf16_clip, kept as h200x2 in results.jsonl\n", kept)
    (run,) = kept_evidence("bf16_clip")
    assert (run.name, run.verdict) == ("h200x2", Verdict.REPRODUCED)
    assert run.facts["harness"].startswith("commit ")
    assert str(recording.folder) not in file.read_text()
    assert result_file.statuses("bf16_clip") == []


def test_runs_come_from_another_machine_in_one_file(
    recording: Recording, file: Path, tmp_path: Path, capsys: Capture
) -> None:
    lines = tmp_path / "evidence.jsonl"
    assert main(["evidence", str(recording.folder), "h200x2", "--out", str(lines)]) == 0
    assert not file.exists() or not file.read_text()
    for _ in range(2):
        assert main(["evidence", "--import", str(lines)]) == 0
    (run,) = kept_evidence("bf16_clip")
    assert (run.name, run.verdict) == ("h200x2", Verdict.REPRODUCED)
    kept, first, second = capsys.readouterr().out.splitlines()
    assert kept.endswith(f" trials of bf16_clip, kept as h200x2 in {lines}")
    assert first.endswith("trials of 1 scenarios are new; 0 were there")
    assert second.startswith("0 trials of 0 scenarios are new")


def test_a_run_that_cannot_be_kept_does_not_keep_the_others_out(
    recording: Recording, file: Path, tmp_path: Path, capsys: Capture
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["evidence", str(empty), str(recording.folder), "h200x2"]) == 3
    assert file.read_text()
    assert f"cannot read {empty}" in capsys.readouterr().err


def test_the_document_has_a_row_for_each_scenario_with_evidence() -> None:
    text = (ROOT / "docs" / "evidence.md").read_text()
    names = [name for name in catalog.sound() if result_file.kept_runs(name)]
    rows = "".join(line for line in text.splitlines() if line.startswith("| "))
    assert [name for name in names if f"`{name}`" not in rows] == []
    assert f"{len(names)} scenarios ran on GPUs" in text


def test_a_reason_stands_only_where_there_is_no_run() -> None:
    assert [name for name in gpu_evidence.REASONS if result_file.kept_runs(name)] == []


def test_a_full_disk_leaves_nothing(
    recording: Recording, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    assert main(["evidence", str(recording.folder), "h200x2"]) == 3
    message = f"no room on the disk for {file}: free some, or name another checkout"
    assert capsys.readouterr().err == f"harness: {message}\n"
    assert not file.exists() or not file.read_text()


@pytest.mark.parametrize("part", ["machine", "source", "command", "started"])
def test_an_incomplete_record_of_a_run_is_inconclusive(
    recording: Recording, file: Path, part: str, capsys: Capture
) -> None:
    with changing(recording.folder / "run.json") as run:
        del run[part]
    assert main(["evidence", str(recording.folder), "h200x2"]) == 3
    assert f"is not the record of a run: KeyError('{part}')" in capsys.readouterr().err
    assert not file.exists() or not file.read_text()
