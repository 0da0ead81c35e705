"""Archives arrive as they were."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from harness.system.archives import pack, unpack


def test_files_and_their_links_arrive_under_their_names(tmp_path: Path) -> None:
    for name, mode in (("tool", 0o755), ("text", 0o644)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    os.link(tmp_path / "text", tmp_path / "link")
    paths = {f"a/{name}": tmp_path / name for name in ("tool", "text", "link", "missing")}
    pack(tmp_path / "archive.tar.xz", {**paths, "folder": tmp_path})
    out = tmp_path / "out"
    with (tmp_path / "archive.tar.xz").open("rb") as file:
        unpack(file, out)
    files = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in files.items()} == {
        "a/tool": "tool",
        "a/text": "text",
        "a/link": "text",
    }
    assert files["a/link"].samefile(files["a/text"])
    assert files["a/tool"].stat().st_mode & 0o777 == 0o755
    assert files["a/text"].stat().st_mode & 0o777 == 0o644


def test_an_archive_of_git_is_unpacked_with_its_folders_and_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "text").write_text("text")
    (tmp_path / "a" / "link").symlink_to("text")
    with tarfile.open(tmp_path / "archive.tar", "w") as tar:
        tar.add(tmp_path / "a", "a")
    unpack(tmp_path / "archive.tar", tmp_path / "out")
    assert (tmp_path / "out" / "a" / "link").is_symlink()
    assert (tmp_path / "out" / "a" / "link").read_text() == "text"
