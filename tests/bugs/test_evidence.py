"""Evidence of a run: a whole file or none, and only for the record of a run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.rank import run_folder
from harness.system.files import ROOT
from tests.recording import Recording, changing

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def out(folders: Path) -> Path:
    return folders / "deepspeed" / "bf16_clip" / "evidence" / "0.19.8_h200x2"


def test_a_run_is_kept_as_json(recording: Recording, out: Path) -> None:
    assert main(["evidence", str(recording.folder), out.name]) == 0
    assert sorted(os.listdir(out.parent)) == ["0.19.8_h200x2.json"]
    evidence = json.loads((out.parent / "0.19.8_h200x2.json").read_text())
    assert evidence["result"]["verdict"] == "reproduced"


def test_the_document_has_a_row_for_each_scenario_with_evidence() -> None:
    text = (ROOT / "docs" / "evidence.md").read_text()
    names = [name for name in catalog.sound() if run_folder.kept(name)]
    rows = "".join(line for line in text.splitlines() if line.startswith("| "))
    assert [name for name in names if f"`{name}`" not in rows] == []
    assert f"{len(names)} scenarios ran on GPUs" in text


def test_a_full_disk_leaves_nothing(
    recording: Recording, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    assert main(["evidence", str(recording.folder), out.name]) == 3
    message = f"no room on the disk for {out.parent}: free some, or name another checkout"
    assert capsys.readouterr().err == f"harness: {message}\n"
    assert not list(out.parent.glob("*"))


@pytest.mark.parametrize("part", ["machine", "source", "environment", "command", "started"])
def test_an_incomplete_record_of_a_run_is_inconclusive(
    recording: Recording, out: Path, part: str, capsys: Capture
) -> None:
    with changing(recording.folder / "run.json") as run:
        del run[part]
    assert main(["evidence", str(recording.folder), out.name]) == 3
    assert f"is not the record of a run: KeyError('{part}')" in capsys.readouterr().err
    assert not list(out.parent.glob("*"))
