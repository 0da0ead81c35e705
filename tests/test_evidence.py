"""What is kept of a run: both files or none, and nothing of what is no run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands import evidence
from tests.recording import Recording

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def out(folders: Path) -> Path:
    return folders / "deepspeed" / "bf16_clip" / "evidence" / "0.19.8_h200x2"


def test_a_run_is_kept_as_json_and_a_page(recording: Recording, out: Path) -> None:
    assert main(["evidence", str(recording.folder), out.name]) == 0
    assert sorted(os.listdir(out.parent)) == ["0.19.8_h200x2.json", "0.19.8_h200x2.md"]
    told = json.loads((out.parent / "0.19.8_h200x2.json").read_text())
    assert told["result"]["verdict"] in (out.parent / "0.19.8_h200x2.md").read_text()


def test_a_full_disk_leaves_neither(
    recording: Recording, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    synced = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["evidence", str(recording.folder), out.name]) == 3
    told = capsys.readouterr().err
    assert (
        told
        == f"harness: no room on the disk for {out.parent}: free some, or name another checkout\n"
    )
    assert not list(out.parent.glob("*"))


@pytest.mark.parametrize("part", ["machine", "source", "environment", "command", "started"])
def test_what_is_no_whole_record_of_a_run_is_inconclusive(
    recording: Recording, out: Path, part: str, capsys: Capture
) -> None:
    file = recording.folder / "run.json"
    told = json.loads(file.read_text())
    del told[part]
    file.write_text(json.dumps(told))
    assert main(["evidence", str(recording.folder), out.name]) == 3
    assert f"is not the record of a run: {part} is missing" in capsys.readouterr().err
    assert not list(out.parent.glob("*"))


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
