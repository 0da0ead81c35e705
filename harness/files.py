"""Where the project lies, files written whole or not at all, locks. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The checkout, or the folder that the packages are installed in."""


def write_whole(path: Path, text: str) -> None:
    """Write a text file aside and rename it, so that nobody ever sees half of it."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_plain(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises OSError for anything else: a link, a FIFO, a device, a folder, or more than that. It is
    for what a stranger may have put there, and waits for nobody.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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

    The kernel frees the lock with the process, so a killed run leaves nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with path.open("a") as file:
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
