"""Files written whole or not at all, and locks between processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.files import locked, write_whole


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
