"""Archives of tiny overlays, and what an accident leaves of one."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.bugs import pins
from harness.bugs.pins import Stack
from harness.cli import bundle
from harness.rank import bytecode
from harness.rank.manifest import DamagedOverlay
from harness.releases import archive, contents, overlay, overlay_cache, releases, resolution
from harness.releases.overlay import Overlay, borrow
from harness.system import archives
from harness.system.errors import Inconclusive, UserError
from harness.system.files import sha256
from tests.made_up import full_disk

STACK = Stack({"up": "1.0"}, "2024-01-01", *pins.here())
LATER = replace(STACK, pins={"up": "1.1"})
SAME, TOOL = "ANSWER = 1\n", "#!/bin/sh\n"
Lent = dict[str, tuple[Stack, Overlay]]


@pytest.fixture(autouse=True)
def maker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds overlays of three files, one of which differs between releases."""

    def install(lock_file: Path, stack: Stack, site: Path) -> None:
        for folder in ("up", "bin"):
            (site / folder).mkdir(parents=True)
        (site / "up" / "same.py").write_text(SAME)
        (site / "up" / "release.py").write_text(f"RELEASE = {stack.pins['up']!r}\n")
        (site / "bin" / "tool").write_text(TOOL)
        (site / "bin" / "tool").chmod(0o755)

    monkeypatch.setattr(resolution, "lock", lambda stack: "up==1.0\n")
    monkeypatch.setattr(resolution, "install", install)


@pytest.fixture
def originals(tmp_path: Path) -> Lent:
    """Two overlays in another cache, by their keys."""
    cache, overlays = tmp_path / "elsewhere", {}
    (cache / "releases").mkdir(parents=True)
    releases.release_file(cache, "up", "1.0").write_text('{"released": "2024-01-01"}')
    for stack in (STACK, LATER):
        with borrow(stack, (), cache) as original:
            overlays[original.key] = (stack, original)
    return overlays


@pytest.fixture
def packed(tmp_path: Path, originals: Lent) -> Path:
    file = tmp_path / "overlays.tar.xz"
    archive.write(file, originals, tmp_path / "elsewhere")
    return file


def members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def test_unpacked_overlays_equal_the_packed_ones_and_share_bytecode(
    packed: Path, originals: Lent, cache: Path
) -> None:
    archive.unpack(packed, list(originals), cache)
    for stack, original in originals.values():
        with borrow(stack, (), cache) as copy:
            assert not copy.is_new
            assert (copy.key, copy.lock) == (original.key, original.lock)
            assert copy.files is not None
            assert copy.files.keys() == (original.files or {}).keys()
            assert copy.hash_of("up/release.py") == original.hash_of("up/release.py")
            for file, entry in copy.files.items():
                assert sha256(copy.site / file) == entry.sha256
            assert (copy.site / "bin" / "tool").stat().st_mode & 0o777 == 0o555
    day = json.loads(releases.release_file(cache, "up", "1.0").read_text())
    assert day["released"] == "2024-01-01"
    assert {p.name for p in cache.iterdir()} == {"contents", "overlays", "releases"}
    up, later_up = (cache / "overlays" / key / overlay.SITE / "up" for key in originals)
    assert bytecode.of(up / "same.py").samefile(bytecode.of(later_up / "same.py"))
    assert not bytecode.of(up / "release.py").samefile(bytecode.of(later_up / "release.py"))


def test_each_content_is_stored_once_and_no_bytecode(packed: Path) -> None:
    with tarfile.open(packed) as tar:
        stored = [Path(m.name).name for m in tar if m.isreg() and "site-packages" in m.name]
    assert sorted(stored) == ["release.py", "release.py", "same.py", "tool"]
    assert not any("__pycache__" in name for name in members(packed))


def test_data_that_changed_is_packed_as_it_is(tmp_path: Path, originals: Lent) -> None:
    key, (_, original) = next(iter(originals.items()))
    (original.site / "bin" / "tool").chmod(0o755)
    (original.site / "bin" / "tool").write_text("rewritten")
    archive.write(tmp_path / "again.tar.xz", {key: originals[key]}, tmp_path / "elsewhere")
    archive.unpack(tmp_path / "again.tar.xz", [key], tmp_path / "box")
    assert (tmp_path / "box/overlays" / key / "site-packages/bin/tool").read_text() == "rewritten"


def test_an_overlay_that_the_cache_has_is_not_replaced(
    packed: Path, originals: Lent, cache: Path
) -> None:
    with borrow(STACK, (), cache) as mine:
        before = mine.site.stat().st_ino
    archive.unpack(packed, list(originals), cache)
    assert mine.site.stat().st_ino == before
    assert {folder.name for folder in overlay_cache.folders(cache)} == set(originals)


def test_a_file_that_was_changed_is_not_packed(originals: Lent, tmp_path: Path) -> None:
    _, original = list(originals.values())[-1]  # a shared file is packed from the last overlay
    file = original.site / "up" / "same.py"
    file.chmod(0o644)
    file.write_text(SAME.replace("1", "2"))
    with pytest.raises(DamagedOverlay, match=r"up/same\.py is not as it was made"):
        archive.write(tmp_path / "archive", originals, tmp_path / "elsewhere")


def changed(packed: Path, name: str, content: bytes | None) -> None:
    """Replace or leave out the members whose paths end with ``name``."""
    texts = members(packed)
    with tarfile.open(packed, "w:xz") as tar:
        for path, text in texts.items():
            new = content if path.endswith(name) else text
            if new is not None:
                member = tarfile.TarInfo(path)
                member.size = len(new)
                tar.addfile(member, io.BytesIO(new))


def refused(archived: Path, originals: Lent, cache: Path) -> bool:
    """Whether an archive is refused, and leaves nothing but locks in the cache."""
    with pytest.raises(Inconclusive, match="is damaged: copy it again, or make it again"):
        archive.unpack(archived, list(originals), cache)
    return nothing_left(cache)


def nothing_left(cache: Path) -> bool:
    return {p.suffix for p in cache.rglob("*") if not p.is_dir()} <= {".lock"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("overlay.json", b"{"),
        ("overlay.json", None),
        ("up/same.py", None),
        ("up/same.py", SAME.replace("1", "2").encode()),
    ],
)
def test_an_archive_that_lacks_code_or_has_other_code_is_refused(
    packed: Path, originals: Lent, cache: Path, name: str, content: bytes | None
) -> None:
    changed(packed, name, content)
    assert refused(packed, originals, cache)


def test_an_archive_that_is_cut_off_or_has_a_wrong_byte_is_refused(
    packed: Path, originals: Lent, cache: Path
) -> None:
    content = packed.read_bytes()
    middle = len(content) // 2
    wrong = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (content[:middle], content[:10], b"", wrong):
        packed.write_bytes(damaged)
        assert refused(packed, originals, cache)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"overlays": 1}'])
def test_an_invalid_bundle_is_a_mistake(tmp_path: Path, cache: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(UserError, match=r"is not a bundle: it has no valid bundle\.json"):
        bundle.unpack(tmp_path, cache)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("module", "function"), [(archives, "unpack"), (bytecode, "compile_all"), (contents, "share")]
)
def test_a_full_disk_leaves_nothing_behind(
    packed: Path,
    originals: Lent,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    function: str,
) -> None:
    monkeypatch.setattr(module, function, full_disk)
    with pytest.raises(Inconclusive, match=f"no room on the disk for {cache}"):
        archive.unpack(packed, list(originals), cache)
    assert nothing_left(cache)


def test_an_overlay_without_files_arrives(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "install", lambda *_: None)
    with borrow(STACK, (), tmp_path / "elsewhere") as empty:
        archive.write(tmp_path / "archive", {empty.key: (STACK, empty)}, tmp_path / "elsewhere")
    archive.unpack(tmp_path / "archive", [empty.key], cache)
    with borrow(STACK, (), cache) as copy:
        assert not copy.is_new
        assert copy.site.is_dir()
