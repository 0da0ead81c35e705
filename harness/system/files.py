"""Files written completely or not at all, and locks. Standard library only."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.system.errors import Fault
from harness.system.text import NO_ROOM

ROOT = Path(__file__).parent.parent.parent
"""The checkout, or the folder in which the packages are installed."""


def write_whole(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it, so that nobody sees half of it.

    Raises OSError if that fails; an old file is then unchanged.
    """
    write_all({path: text})


def write_all(texts: Mapping[Path, str]) -> None:
    """Write several text files that belong together, as ``write_whole`` does: all or none."""
    asides = {path: beside(path) for path in texts}
    try:
        for path, aside in asides.items():
            with os.fdopen(_new_file(aside), "w", encoding="utf-8") as file:
                file.write(texts[path])
                file.flush()
                os.fsync(file.fileno())
        for path, aside in asides.items():
            os.replace(aside, path)
    except BaseException:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
        raise


def beside(path: Path) -> Path:
    """An unused hidden name in the same folder, for a temporary file."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def new_folder_beside(path: Path) -> Path:
    """Create a folder with an unused name beside ``path``.

    Unlike mkdtemp's, its mode follows the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = beside(path)
    aside.mkdir()
    return aside


def link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it if the file system has no links, or too many of this file."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        shutil.copy2(source, target)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


@contextmanager
def writing(path: Path, way_out: str) -> Iterator[None]:
    """Turn an OSError while writing at ``path`` into Inconclusive, with a message of one line.

    ``way_out`` is the setting with which the user can name another path: ``HARNESS_CACHE``.
    """
    try:
        yield
    except OSError as error:
        raise unwritten(path, error, way_out) from None


def unwritten(path: Path, error: OSError, way_out: str) -> Fault:
    """The error that says, in one line, why ``path`` cannot be written."""
    if error.errno in NO_ROOM:
        return Fault(f"no room on the disk for {path}: free some, or name another {way_out}")
    why = error.strerror or error
    return Fault(f"cannot write {path}: {why}; name another {way_out}")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on ``path``. With ``wait=False``, yields False if somebody else holds it.

    The kernel frees the lock when the process ends, also if it is killed. If the lock file cannot
    be created, a shared lock is granted, because nobody can write there; an exclusive one raises
    OSError."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with _lock_file(path, shared) as file:
        if file is None:
            yield True
            return
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def _lock_file(path: Path, shared: bool) -> Iterator[int | None]:
    """The descriptor of the lock file; None if this user cannot create it."""
    handle = _opened(path, shared)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _opened(path: Path, shared: bool) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as refused:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # as good for a lock
        except OSError:
            if not shared:
                raise refused from None
            return None
