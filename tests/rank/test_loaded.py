"""Which files of an overlay a process has loaded, and whether they are as they were built."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.rank import bytecode, loaded_files
from harness.rank.manifest import MANIFEST, changed_files
from harness.releases import overlay
from harness.system.files import ROOT, sha256

PROBE = """
import json, sys
site, names = sys.argv[1], sys.argv[2:]
sys.path[:0] = [site, {root!r}]
sys.dont_write_bytecode = True
for name in names:
    __import__(name)
from pathlib import Path
from harness.rank import loaded_files
found = loaded_files.files(Path(site))
print(json.dumps(found))
"""


@pytest.fixture
def overlay_site(tmp_path: Path) -> Path:
    """A small overlay: its site, with a manifest beside it."""
    site = tmp_path / "site-packages"
    (site / "up").mkdir(parents=True)
    (site / "up" / "__init__.py").write_text("from up import watched\n")
    for name in ("watched", "other", "never"):
        (site / "up" / f"{name}.py").write_text("ANSWER = 1\n")
    bytecode.compile_all(sorted(site.rglob("*.py")), site)
    manifest = {"files": overlay.seal(site)}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    return site


def in_a_process(site: Path, *names: str) -> dict[str, str]:
    """The files that a process has loaded from ``site`` once it has imported these modules."""
    command = [sys.executable, "-c", PROBE.format(root=str(ROOT)), str(site), *names]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    files: dict[str, str] = json.loads(process.stdout)
    return files


def changed(site: Path) -> list[str]:
    """The files that a process has loaded and that are not as they were built."""
    files = in_a_process(site, "up.other")
    return changed_files(site, files)


def test_exactly_the_loaded_files_are_listed_with_their_bytecode(overlay_site: Path) -> None:
    files = in_a_process(overlay_site, "up.other")
    sources = {"up/__init__.py", "up/watched.py", "up/other.py"}
    compiled = {
        str(bytecode.of(overlay_site / source).relative_to(overlay_site)) for source in sources
    }
    assert set(files) == sources | compiled
    assert files == {file: sha256(overlay_site / file) for file in files}
    assert changed_files(overlay_site, files) == []


def test_a_source_that_was_changed_in_place_is_noticed(overlay_site: Path) -> None:
    file = overlay_site / "up" / "watched.py"
    file.chmod(0o644)
    file.write_text("ANSWER = 2\n")  # of the same size
    assert changed(overlay_site) == ["up/watched.py"]
    code = f"import sys; sys.path.insert(0, {str(overlay_site)!r})\nfrom up.watched import ANSWER\n"
    code += "sys.exit(ANSWER)"
    assert subprocess.run([sys.executable, "-B", "-c", code], check=False).returncode == 2


def test_changed_bytecode_is_noticed(overlay_site: Path) -> None:
    """Its header matches the source, and Python trusts the header."""
    source = overlay_site / "up" / "other.py"
    compiled, text = bytecode.of(source), source.read_text()
    content = compiled.read_bytes()
    source.chmod(0o644)
    source.write_text("ANSWER = 2\n")
    compiled.unlink()
    bytecode.compile_all([source], overlay_site)
    replacement = compiled.read_bytes()
    source.write_text(text)
    compiled.write_bytes(content[:16] + replacement[16:])
    assert changed(overlay_site) == [str(compiled.relative_to(overlay_site))]


def test_a_file_that_was_added_later_is_noticed(overlay_site: Path) -> None:
    (overlay_site / "later.py").write_text("")
    files = in_a_process(overlay_site, "later")
    assert changed_files(overlay_site, files) == ["later.py"]


def test_a_loaded_file_that_was_deleted_is_listed(
    overlay_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("ghost")
    module.__file__ = str(overlay_site / "ghost.py")
    monkeypatch.setitem(sys.modules, "ghost", module)
    files = loaded_files.files(overlay_site)
    assert files == {"ghost.py": loaded_files.GONE}
    assert changed_files(overlay_site, files) == ["ghost.py"]


def test_a_library_that_is_only_mapped_is_listed(
    overlay_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (overlay_site / "up.libs").mkdir()
    (overlay_site / "up.libs" / "lib one.so").write_bytes(b"code")
    maps = tmp_path / "maps"
    line = f"7f0000000000-7f0000001000 r-xp 00000000 fe:00 42    {overlay_site}/up.libs/lib one.so"
    maps.write_text(f"7f-8f rw-p 0 00:00 0 [heap]\n{line}\n{line} (deleted)\n")
    monkeypatch.setattr(loaded_files, "MAPS", maps)
    assert loaded_files.files(overlay_site) == {
        "up.libs/lib one.so": sha256(overlay_site / "up.libs" / "lib one.so")
    }
    monkeypatch.setattr(loaded_files, "MAPS", tmp_path / "no such")
    assert loaded_files.files(overlay_site) == {}


class Strange(ModuleType):
    """A module that would import more modules at any access."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"accessed {name}")


class Slotted:
    """Not a module, but sys.modules may contain such objects."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"accessed {name}")


def test_odd_modules_are_not_touched(overlay_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameless, odd_spec = ModuleType("nameless"), ModuleType("odd")
    nameless.__file__ = None
    odd_spec.__spec__ = Slotted()  # type: ignore[assignment]
    for number, module in enumerate([Strange("lazy"), Slotted(), None, nameless, odd_spec]):
        monkeypatch.setitem(sys.modules, f"odd_{number}", module)  # type: ignore[arg-type]
    before = set(sys.modules)
    assert loaded_files.files(overlay_site) == {}
    assert set(sys.modules) == before


KEEPS = """
import sys
sys.path[:0] = [{site!r}, {elsewhere!r}, {root!r}]
from pathlib import Path
from harness.rank import bytecode
bytecode.keep(Path({site!r}))
bytecode.keep(Path({site!r}))
import inside, outside, of_an_overlay
"""


def test_bytecode_is_written_for_everything_except_an_overlay(tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site-packages", tmp_path / "site-packages-of-torch"
    for folder in (site, elsewhere):
        folder.mkdir()
    for source in (site / "inside.py", elsewhere / "outside.py", elsewhere / "of_an_overlay.py"):
        source.write_text("")
    overlay.seal_file(elsewhere / "of_an_overlay.py")
    code = KEEPS.format(site=str(site), elsewhere=str(elsewhere), root=str(ROOT))
    subprocess.run([sys.executable, "-B", "-c", code], check=True)
    assert not (site / "__pycache__").exists()
    assert bytecode.of(elsewhere / "outside.py").exists()
    assert not bytecode.of(elsewhere / "of_an_overlay.py").exists()
