"""What tests of ``check`` share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder: ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
