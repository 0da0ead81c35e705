"""Where the project lies, files written whole or not at all, locks. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.spec import Fault
from harness.text import NO_ROOM

ROOT = Path(__file__).parent.parent
"""The checkout, or the folder that the packages are installed in."""


def write_whole(path: Path, text: str) -> None:
    """Write a text file aside and rename it, so that nobody ever sees half of it.

    Raises OSError where that cannot be done; the old file, if any, is still there then.
    """
    write_all({path: text})


def write_all(texts: Mapping[Path, str]) -> None:
    """Write several text files that belong together; as ``write_whole``, all of them or none."""
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
    """A name that nothing has yet, hidden, in the same folder: for what is made aside."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def new_folder_beside(path: Path) -> Path:
    """Make a folder with a name of its own in the folder of ``path``, which is made if need be.

    The kernel takes the umask off its mode. mkdtemp's folders are their maker's alone, and asking
    for the umask sets it, for the other threads as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = beside(path)
    aside.mkdir()
    return aside


def link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it where the file system has no links, or no more of one file."""
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
    """Tell what hinders writing at ``path`` in one line: OSErrors become Inconclusive.

    ``way_out`` is what the user can name instead: ``HARNESS_CACHE``.
    """
    try:
        yield
    except OSError as error:
        raise unwritten(path, error, way_out) from None


def unwritten(path: Path, error: OSError, way_out: str) -> Fault:
    """One line that says why something cannot be written at ``path``."""
    if error.errno in NO_ROOM:
        return Fault(f"no room on the disk for {path}: free some, or name another {way_out}")
    why = error.strerror or error
    return Fault(f"cannot write {path}: {why}; name another {way_out}")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_plain(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises OSError for anything else: a link, a FIFO, a device, a folder, or more than that. It is
    for what a stranger may have put there, and waits for nobody.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
        raise
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if found.st_size > most:
            raise OSError(
                errno.EFBIG, f"has {found.st_size} bytes, and {most} are the most", str(path)
            )
        return file.read(most)


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on ``path``; yields False instead of waiting if ``wait`` is off and it is held.

    The kernel frees the lock with the process, so a killed run leaves nothing behind. A shared lock
    is given where the file cannot even be made, too: nobody who is like us can write there. An
    exclusive one raises OSError then.
    """
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
    """The descriptor of a lock's file, made if need be; None where only its owner could do that."""
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
