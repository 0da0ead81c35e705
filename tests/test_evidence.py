"""What is kept of a run: both files or none, and nothing of what is no run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.verbs import evidence
from tests.recording import Recording

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept" / "name_0.19.8"


def test_a_run_is_kept_as_json_and_a_page(recording: Recording, out: Path) -> None:
    assert main(["evidence", str(recording.folder), str(out)]) == 0
    assert sorted(os.listdir(out.parent)) == ["name_0.19.8.json", "name_0.19.8.md"]
    told = json.loads((out.parent / "name_0.19.8.json").read_text())
    assert told["result"]["verdict"] in (out.parent / "name_0.19.8.md").read_text()


def test_a_full_disk_leaves_neither(
    recording: Recording, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    synced = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["evidence", str(recording.folder), str(out)]) == 3
    told = capsys.readouterr().err
    assert told == f"harness: no room on the disk for {out}: free some, or name another OUT\n"
    assert os.listdir(out.parent) == []


def test_a_folder_that_is_not_there_is_a_mistake(
    recording: Recording, out: Path, capsys: Capture
) -> None:
    words = ["evidence", str(recording.folder), str(out.parent / "none" / "name")]
    assert main(words) == 2
    assert f"no folder {out.parent / 'none'}" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["machine", "source", "environment", "command", "started"])
def test_what_is_no_whole_record_of_a_run_is_inconclusive(
    recording: Recording, out: Path, part: str, capsys: Capture
) -> None:
    file = recording.folder / "run.json"
    told = json.loads(file.read_text())
    del told[part]
    file.write_text(json.dumps(told))
    assert main(["evidence", str(recording.folder), str(out)]) == 3
    assert f"is not the record of a run: {part} is missing" in capsys.readouterr().err
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_anywhere_is_one_line(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/the/file")

    monkeypatch.setattr(evidence, "keep", full)
    assert main(["evidence", "run", "out"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("harness: no room on the disk for /the/file: free some")
    assert told.count("\n") == 1


def test_another_error_of_the_system_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(evidence, "keep", broken)
    assert main(["evidence", "run", "out"]) == 3
    assert "Bad file descriptor" in capsys.readouterr().err
