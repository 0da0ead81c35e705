"""Archives of tiny overlays, and what an accident leaves of one."""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bugs import pins
from harness.bugs.pins import Stack
from harness.cli import bundle
from harness.rank import bytecode
from harness.rank.manifest import DamagedOverlay
from harness.releases import archive, overlay, overlay_cache, releases, resolution
from harness.releases.archive import InvalidArchive
from harness.releases.overlay import Overlay, borrow
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


@pytest.mark.parametrize("blocks", [1, 16, 17, 20])
def test_an_archive_of_any_size_is_complete(tmp_path: Path, blocks: int) -> None:
    content, file = os.urandom(blocks * tarfile.BLOCKSIZE), tmp_path / "archive.tar.xz"
    (tmp_path / "file").write_bytes(content)
    archive.pack(file, [("file", tmp_path / "file")])
    assert members(file) == {"file": content}
    assert len(lzma.decompress(file.read_bytes())) % tarfile.RECORDSIZE == 0


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
    names = {"contents", "overlays", "releases", "unpacking.lock"}
    assert {p.name for p in cache.iterdir()} == names
    up, later_up = (cache / "overlays" / key / overlay.SITE / "up" for key in originals)
    assert bytecode.of(up / "same.py").samefile(bytecode.of(later_up / "same.py"))
    assert not bytecode.of(up / "release.py").samefile(bytecode.of(later_up / "release.py"))


def test_each_content_is_stored_once_and_no_bytecode(packed: Path) -> None:
    contents = members(packed)
    with tarfile.open(packed) as tar:
        stored = [Path(m.name).name for m in tar if m.isreg() and "site-packages" in m.name]
    assert sorted(stored) == ["release.py", "release.py", "same.py", "tool"]
    assert not any("__pycache__" in name for name in contents)


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
    contents = members(packed)
    with tarfile.open(packed, "w:xz") as tar:
        for path, text in contents.items():
            new = content if path.endswith(name) else text
            if new is not None:
                member = tarfile.TarInfo(path)
                member.size = len(new)
                tar.addfile(member, io.BytesIO(new))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("overlay.json", b"{", "it has no valid manifest"),
        ("overlay.json", None, "it has no valid manifest"),
        ("up/same.py", None, "it lacks up/same.py of overlay"),
    ],
)
def test_an_archive_that_lacks_something_is_refused(
    packed: Path, originals: Lent, cache: Path, name: str, content: bytes | None, why: str
) -> None:
    changed(packed, name, content)
    with pytest.raises(InvalidArchive, match=why):
        archive.unpack(packed, list(originals), cache)
    assert nothing_left(cache)


def nothing_left(cache: Path) -> bool:
    """Whether a cache contains nothing but locks."""
    return {p.suffix for p in cache.rglob("*") if not p.is_dir()} <= {".lock"}


def test_an_archive_that_is_cut_off_is_refused(packed: Path, cache: Path) -> None:
    content = packed.read_bytes()
    for size in (len(content) // 2, 10, 0):
        packed.write_bytes(content[:size])
        with pytest.raises(InvalidArchive, match="it cannot be read"):
            archive.unpack(packed, [overlay.key(STACK)], cache)
        assert nothing_left(cache)


@pytest.fixture
def folder(tmp_path: Path, packed: Path, originals: Lent) -> Path:
    """A bundle without the files that it needs to run."""
    box = tmp_path / "bundle"
    box.mkdir()
    packed.rename(box / bundle.ARCHIVE)
    content = {"format": bundle.FORMAT, "overlays": {key: {} for key in originals}}
    (box / "bundle.json").write_text(json.dumps(content))
    return box


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a bundle"),
        ("{", "is not a bundle"),
        ("[]", "is not a bundle"),
        ('{"overlays": {"../../x": {}}, "format": 4}', "names something that is not an overlay"),
        ('{"overlays": {}}', "is a bundle of another version: make it again"),
    ],
)
def test_an_invalid_bundle_is_a_mistake(
    tmp_path: Path, cache: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(UserError, match=message):
        bundle.unpack(tmp_path, cache)
    assert not cache.exists()


def test_a_bundle_that_is_refused_is_named(folder: Path, cache: Path) -> None:
    (folder / bundle.ARCHIVE).write_bytes(b"")
    with pytest.raises(Inconclusive, match="bundle is refused: it cannot be read"):
        bundle.unpack(folder, cache)


@pytest.mark.parametrize("step", ["_extract", "_assemble", "_move_into"])
def test_a_full_disk_leaves_nothing_behind(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(archive, step, full_disk)
    with pytest.raises(Inconclusive, match=f"no room on the disk for {cache}"):
        bundle.unpack(folder, cache)
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
