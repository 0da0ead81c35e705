"""Fixtures that several test files share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.recording import RECORDED, Recording


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A copy of the recorded run, to tamper with."""
    return Recording(shutil.copytree(RECORDED, tmp_path / "run"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the harness's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HARNESS_CACHE", str(folder))
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where run folders go during a test; not there before the first run."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("HARNESS_RUNS", str(folder))
    return folder
