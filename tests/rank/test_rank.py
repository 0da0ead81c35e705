"""What a rank records about the files that a defect edits."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from harness.rank import scenario
from harness.system.files import sha256


@pytest.mark.parametrize(
    ("file", "module"), [("upp/__init__.py", "upp"), ("upp/inner.py", "upp.inner")]
)
def test_a_watched_file_is_found_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, module: str
) -> None:
    (tmp_path / "upp").mkdir()
    for name in ("__init__.py", "inner.py"):
        (tmp_path / "upp" / name).write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert scenario._watched(file) is None
    importlib.import_module(module)
    try:
        path = tmp_path / file
        assert scenario._watched(file) == {"path": str(path), "sha256": sha256(path)}
    finally:
        for name in ("upp", "upp.inner"):
            sys.modules.pop(name, None)
