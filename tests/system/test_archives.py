"""Archives are unpacked into their folder and nowhere else, also by Pythons without PEP 706."""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from harness.system.archives import unpack


@pytest.fixture(autouse=True, params=["this Python", "without PEP 706"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "this Python":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(CONTENT) if kind == tarfile.REGTYPE else 0
    info.uid = info.gid = 12345
    return info


CONTENT = b"content"


def archive(folder: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(folder / "archive.tar.xz", "w:xz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(CONTENT) if info.size else None)
    return folder / "archive.tar.xz"


def test_files_folders_and_links_within_the_folder_are_unpacked(tmp_path: Path) -> None:
    packed = archive(
        tmp_path,
        member("a", tarfile.DIRTYPE, mode=0o700),
        member("a/tool", mode=0o4755),
        member("a/text", mode=0o666),
        member("a/link", tarfile.SYMTYPE, "text"),
        member("same", tarfile.LNKTYPE, "a/text"),
    )
    out = tmp_path / "out"
    with packed.open("rb") as file:
        unpack(file, out)
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == {
        "a",
        "a/tool",
        "a/text",
        "a/link",
        "same",
    }
    assert (out / "a" / "link").read_bytes() == (out / "same").read_bytes() == CONTENT
    assert (out / "a" / "tool").stat().st_mode & 0o7777 == 0o755
    assert (out / "a" / "text").stat().st_mode & 0o7777 == 0o644
    assert (out / "a" / "text").stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("a/../../evil")],
        [member("link", tarfile.SYMTYPE, "/")],
        [member("link", tarfile.SYMTYPE, ".."), member("link/evil")],
        [member("link", tarfile.SYMTYPE, "a/../..")],
        [member("same", tarfile.LNKTYPE, "../victim")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("device", tarfile.CHRTYPE)],
    ],
    ids=lambda members: f"{members[-1].name} {members[0].linkname}",
)
def test_nothing_is_written_or_linked_outside(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    (tmp_path / "victim").write_text("mine")
    out = tmp_path / "out"
    with pytest.raises(tarfile.TarError):
        unpack(archive(tmp_path, *members), out)
    assert {path.name for path in tmp_path.iterdir()} <= {"victim", "archive.tar.xz", "out"}
    assert not any(path.is_symlink() or path.is_fifo() for path in out.rglob("*"))


def test_an_absolute_path_stays_in_the_folder_or_is_refused(tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    with suppress(tarfile.TarError):
        unpack(archive(tmp_path, member(str(evil))), tmp_path / "out")
    assert not evil.exists()
