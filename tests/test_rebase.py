"""What was imported from one overlay, and when it is good for another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.files import sha256
from tests.sandbox import ROOT

PROBE = """
import sys
sys.path[:0] = [{site!r}, {root!r}]
import json, os
from pathlib import Path
from harness.upstream import loaded, rebase
listener = rebase.listen()
import up.inner
try:
    import optional
except ImportError:
    pass
site, other = Path({site!r}), Path({other!r})
told = {{"same": rebase.same(site, other, listener.asked, {files!r})}}
if told["same"]:
    rebase.rebase(site, other)
    import up.lazy
    told["files"] = [up.__file__, up.inner.__spec__.origin, up.lazy.__file__]
    told["path"] = list(up.__path__)
    told["loaded"] = loaded.files(other)
    told["moved"] = str(site) in sys.path
print(json.dumps(told))
"""


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two overlays with the same package in them."""
    first, second = tmp_path / "first" / "site-packages", tmp_path / "second" / "site-packages"
    (first / "up").mkdir(parents=True)
    for name in ("__init__", "inner", "lazy"):
        (first / "up" / f"{name}.py").write_text(f"NAME = '{name}'\n")
    (first / "other.py").write_text("")
    shutil.copytree(first, second)
    return first, second


def probed(site: Path, other: Path) -> dict[str, object]:
    """What a process says that has imported of ``site`` and goes on with ``other``."""
    files = {str(f.relative_to(other)): sha256(f) for f in other.rglob("*") if f.is_file()}
    code = PROBE.format(site=str(site), other=str(other), root=str(ROOT), files=files)
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True
    )
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_the_same_files_go_by_the_other_overlay(both: tuple[Path, Path]) -> None:
    site, other = both
    told = probed(site, other)
    assert told["files"] == [str(other / "up" / f"{n}.py") for n in ("__init__", "inner", "lazy")]
    assert told["path"] == [str(other / "up")]
    assert told["moved"] is False
    assert told["loaded"] == {
        f"up/{n}.py": sha256(other / "up" / f"{n}.py") for n in ("__init__", "inner", "lazy")
    }


def test_another_file_that_was_loaded_is_not_the_same(both: tuple[Path, Path]) -> None:
    (both[1] / "up" / "inner.py").write_text("NAME = 'onner'\n")
    assert probed(*both) == {"same": False}


def test_a_file_that_is_missing_there_is_not_the_same(both: tuple[Path, Path]) -> None:
    (both[1] / "up" / "inner.py").unlink()
    assert probed(*both) == {"same": False}


def test_what_would_have_been_found_there_is_not_the_same(both: tuple[Path, Path]) -> None:
    (both[1] / "optional.py").write_text("")
    assert probed(*both) == {"same": False}


def test_what_nobody_asked_for_may_differ(both: tuple[Path, Path]) -> None:
    (both[1] / "other.py").write_text("another\n")
    (both[1] / "more.py").write_text("")
    assert probed(*both)["same"] is True
