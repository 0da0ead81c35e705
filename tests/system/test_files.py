"""Files written whole or not at all, and locks between processes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.system import lines
from harness.system.errors import Inconclusive
from harness.system.files import (
    folder_whole,
    link,
    locked,
    new_folder_beside,
    refuse_unless_writable,
    write_all,
    write_whole,
    writing,
)
from tests.another_user import as_nobody, needs_root


def test_files_are_written_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_file, new_file = tmp_path / "one", tmp_path / "two"
    write_whole(old_file, "old")
    full = OSError(errno.ENOSPC, "no room")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=[full, None, full, None, None]))
    with pytest.raises(OSError, match="no room"):
        write_whole(old_file, "new")
    with pytest.raises(OSError, match="no room"):
        write_all({old_file: "1", new_file: "2"})
    assert old_file.read_text() == "old"
    assert os.listdir(tmp_path) == ["one"]
    write_all({old_file: "1", new_file: "2"})
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_what_is_no_file_is_written_and_never_replaced(tmp_path: Path) -> None:
    """In a container, --json /dev/null made a file of /dev/null."""
    (tmp_path / "null").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("null", "pipe"):
        refuse_unless_writable(tmp_path / name)
        write_whole(tmp_path / name, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert (tmp_path / "null").is_char_device()
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]
    with pytest.raises(OSError, match="No space left"):
        write_whole(Path("/dev/full"), "text")
    assert Path("/dev/full").is_char_device()


def test_a_link_is_replaced_and_the_file_behind_it_is_not_written(tmp_path: Path) -> None:
    """A repository's link out.sarif must not lead to a file of the user's."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").symlink_to("mine")
    write_whole(tmp_path / "out", "text")
    assert ((tmp_path / "out").read_text(), (tmp_path / "mine").read_text()) == ("text", "mine")


def test_readers_share_a_lock_and_a_writer_has_it_alone(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    with locked(lock), locked(lock, wait=False) as again:
        assert not again
    with locked(lock, shared=True), locked(lock, shared=True, wait=False) as second:
        assert second
        with locked(lock, wait=False) as writer:
            assert not writer
    with locked(lock, wait=False) as sole_writer:
        assert sole_writer


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_open_to_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    write_whole(tmp_path / "file", "text")
    folder = new_folder_beside(tmp_path / "deep" / "folder")
    with locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666 & ~umask
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask
    assert folder.parent == tmp_path / "deep"
    assert folder.name.startswith(".folder.")


def test_a_folder_is_there_with_all_that_fills_it_or_not_at_all(tmp_path: Path) -> None:
    whole = tmp_path / "deep" / "whole"
    with folder_whole(whole) as aside:
        (aside / "file").write_text("text")
        assert not whole.exists()
    with pytest.raises(FileNotFoundError), folder_whole(tmp_path / "deep" / "half") as aside:
        (aside / "missing" / "file").write_text("text")
    assert list(tmp_path.rglob("*")) == [whole.parent, whole, whole / "file"]


NO_ROOM = "no room on the disk for FILE: free some, or name another HARNESS_CACHE"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, NO_ROOM),
        (errno.EDQUOT, NO_ROOM),
        (errno.EACCES, "cannot write FILE: Permission denied; name another HARNESS_CACHE"),
        (errno.EROFS, "cannot write FILE: Read-only file system; name another HARNESS_CACHE"),
    ],
)
def test_a_failure_to_write_is_one_line(number: int, message: str) -> None:
    with pytest.raises(Inconclusive) as caught, writing(Path("FILE"), "HARNESS_CACHE"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == message


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("content")
    link(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").samefile(tmp_path / "one")
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EMLINK, "too many links")))
    link(tmp_path / "one", tmp_path / "three")
    assert (tmp_path / "three").read_text() == "content"
    assert not (tmp_path / "three").samefile(tmp_path / "one")


def _hold(lock: Path, shared: bool = True) -> Iterator[str]:
    try:
        with locked(lock, shared=shared):
            yield "held"
    except PermissionError as error:
        yield str(error.strerror)


@needs_root
def test_another_users_lock_can_be_held(shared: Path) -> None:
    """The lock keeps its owner out, although its file is read-only."""
    lock = shared / "lock"
    lock.touch(0o644)
    with as_nobody(_hold, lock) as answer:
        assert answer == "held"
        with locked(lock, wait=False) as mine:
            assert not mine
    with locked(lock, wait=False) as mine:
        assert mine


@needs_root
def test_a_lock_that_cannot_be_made_is_not_needed_to_read(shared: Path) -> None:
    cases = ((shared / "lock", True), (shared / "deep" / "lock", True), (shared / "lock", False))
    for (lock, reads), expected in zip(cases, ("held", "held", "Permission denied"), strict=True):
        with as_nobody(_hold, lock, reads) as answer:
            assert answer == expected
        assert not list(shared.iterdir())


def test_lines_of_several_writers_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda n: lines.append(file, [[n, "x" * 9_000]] * 2), range(20)))
    numbers = [number for number, _ in lines.read(file)]
    assert sorted(numbers) == sorted([*range(20)] * 2)
    assert numbers[::2] == numbers[1::2], "the lines of one writer stay together"


def test_a_line_that_lost_its_end_is_left_out_and_removed_by_the_next_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.jsonl"
    lines.append(file, [1, 2])
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"half": ')
    assert lines.read(file) == [1, 2]
    assert "its last line is cut off" in capsys.readouterr().err
    lines.append(file, [3])
    assert file.read_bytes() == whole + b"3\n"


def test_lines_that_cannot_be_written_leave_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines.jsonl"
    lines.append(file, [1])
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        lines.append(file, [2])
    assert lines.read(file) == [1]
