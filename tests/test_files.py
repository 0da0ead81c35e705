"""Files written whole or not at all, and locks between processes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import Inconclusive
from harness.files import link, locked, new_folder_beside, write_all, write_whole, writing
from tests.another_user import as_nobody, needs_root


def test_a_failed_write_leaves_the_old_text_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError("no room")

    file = tmp_path / "file"
    write_whole(file, "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no room"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_lock_that_is_held_is_not_given_again(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    with locked(lock), locked(lock, wait=False) as again:
        assert not again
    with locked(lock, wait=False) as held:
        assert held


def test_readers_share_a_lock_and_keep_a_writer_out(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, shared=True), locked(lock, shared=True, wait=False) as second:
        assert second
        with locked(lock, wait=False) as writer:
            assert not writer


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_open_to_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    write_whole(tmp_path / "file", "text")
    made = new_folder_beside(tmp_path / "deep" / "folder")
    with locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666 & ~umask
    assert made.stat().st_mode & 0o777 == 0o777 & ~umask
    assert made.parent == tmp_path / "deep"
    assert made.name.startswith(".folder.")


def test_files_that_belong_together_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room"):
        write_all({tmp_path / "one": "1", tmp_path / "two": "2"})
    assert os.listdir(tmp_path) == []
    write_all({tmp_path / "one": "1", tmp_path / "two": "2"})
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "no room on the disk for PLACE: free some, or name another HARNESS_CACHE"),
        (errno.EDQUOT, "no room on the disk for PLACE: free some, or name another HARNESS_CACHE"),
        (errno.EACCES, "cannot write PLACE: Permission denied; name another HARNESS_CACHE"),
        (errno.EROFS, "cannot write PLACE: Read-only file system; name another HARNESS_CACHE"),
    ],
)
def test_what_hinders_writing_is_one_line(number: int, told: str) -> None:
    with pytest.raises(Inconclusive) as caught, writing(Path("PLACE"), "HARNESS_CACHE"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == told


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("content")
    link(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").samefile(tmp_path / "one")

    def full(*_: object) -> None:
        raise OSError(errno.EMLINK, "too many links")

    monkeypatch.setattr(os, "link", full)
    link(tmp_path / "one", tmp_path / "three")
    assert (tmp_path / "three").read_text() == "content"
    assert not (tmp_path / "three").samefile(tmp_path / "one")


@needs_root
def test_a_lock_of_somebody_else_can_be_held(shared: Path) -> None:
    """It keeps its owner out, though the file cannot be written to."""
    lock = shared / "lock"
    lock.touch(0o644)
    with as_nobody(_hold, lock) as told:
        assert told == "held"
        with locked(lock, wait=False) as mine:
            assert not mine
    with locked(lock, wait=False) as mine:
        assert mine


def _hold(lock: Path) -> Iterator[str]:
    with locked(lock, shared=True):
        yield "held"


@needs_root
def test_a_lock_that_cannot_be_made_is_not_needed_to_read(shared: Path) -> None:
    with as_nobody(_hold, shared / "lock") as told:
        assert told == "held"
    with as_nobody(_hold, shared / "deep" / "lock") as told:
        assert told == "held"
    assert not list(shared.iterdir())
    with as_nobody(_hold_alone, shared / "lock") as told:
        assert told == "Permission denied"


def _hold_alone(lock: Path) -> Iterator[str]:
    try:
        with locked(lock):
            yield "held"
    except PermissionError as error:
        yield str(error.strerror)
