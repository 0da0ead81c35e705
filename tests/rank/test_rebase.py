"""When modules that were imported from one overlay can be used with another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.system.files import sha256
from tests.sandbox import ROOT

PROBE = """
import sys
sys.path[:0] = [{site!r}, {root!r}]
import json, os
from pathlib import Path
from harness.rank import loaded_files
listener = loaded_files.listen()
import up.inner
try:
    import optional
except ImportError:
    pass
site, other = Path({site!r}), Path({other!r})
report = {{"same": loaded_files.are_same(site, other, listener.asked, {files!r})}}
if report["same"]:
    loaded_files.rebase(site, other)
    import up.lazy
    report["files"] = [up.__file__, up.inner.__spec__.origin, up.lazy.__file__]
    report["path"] = list(up.__path__)
    report["loaded"] = loaded_files.files(other)
    report["moved"] = str(site) in sys.path
print(json.dumps(report))
"""


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two overlays that contain the same package."""
    source, copy = tmp_path / "first" / "site-packages", tmp_path / "second" / "site-packages"
    (source / "up").mkdir(parents=True)
    for name in ("__init__", "inner", "lazy"):
        (source / "up" / f"{name}.py").write_text(f"NAME = '{name}'\n")
    (source / "other.py").write_text("")
    shutil.copytree(source, copy)
    return source, copy


def probed(site: Path, next_site: Path) -> dict[str, object]:
    """The report of a process that imports from ``site`` and continues with ``next_site``."""
    files = {str(f.relative_to(next_site)): sha256(f) for f in next_site.rglob("*") if f.is_file()}
    code = PROBE.format(site=str(site), other=str(next_site), root=str(ROOT), files=files)
    command = [sys.executable, "-B", "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, object] = json.loads(process.stdout)
    return report


def test_modules_of_the_same_files_move_to_the_other_overlay(both: tuple[Path, Path]) -> None:
    (both[1] / "other.py").write_text("another\n")  # nobody imports these two
    (both[1] / "more.py").write_text("")
    report, folder = probed(*both), both[1] / "up"
    names = [f"{name}.py" for name in ("__init__", "inner", "lazy")]
    assert report == {
        "same": True,
        "files": [str(folder / name) for name in names],
        "path": [str(folder)],
        "moved": False,
        "loaded": {f"up/{name}": sha256(folder / name) for name in names},
    }


@pytest.mark.parametrize(
    ("file", "text"),
    [("up/inner.py", "NAME = 'onner'\n"), ("up/inner.py", None), ("optional.py", "")],
    ids=["changed", "missing", "added, and an import would have found it"],
)
def test_another_file_that_matters_is_not_the_same(
    both: tuple[Path, Path], file: str, text: str | None
) -> None:
    (both[1] / file).unlink(missing_ok=True)
    if text is not None:
        (both[1] / file).write_text(text)
    assert probed(*both) == {"same": False}
