"""The contents of overlays' files, each stored once: most files of two releases are the same.

``CACHE/contents/AB/CD...-444`` is a file with the SHA-256 ``ABCD...`` and the mode 444. Overlays
with an equal file have a hard link to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from harness.rank.manifest import BuiltFile
from harness.system.files import beside, sha256
from harness.system.text import NO_ROOM

FOLDER = "contents"


def share(site: Path, files: Mapping[str, BuiltFile], cache: Path) -> None:
    """Replace files of a new overlay by links to equal files of others, and keep them for the next.

    ``files`` are the files of ``site``. Where the file system has no links, or the cache
    belongs to another user, the overlay keeps files of its own.
    """
    for name, (size, digest) in files.items():
        if not size:
            continue  # needs no room, and a file system limits the links of one file
        path = site / name
        mode = stat.S_IMODE(path.stat().st_mode)
        stored = cache / FOLDER / digest[:2] / f"{digest[2:]}-{mode:o}"
        try:
            if _is_whole(stored, digest):
                _replace(path, stored)
            else:
                stored.parent.mkdir(parents=True, exist_ok=True)
                _replace(stored, path)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise


def _is_whole(stored: Path, digest: str) -> bool:
    """Whether a stored file exists and has its content: somebody may have changed it in place."""
    try:
        status = stored.stat()
    except FileNotFoundError:
        return False
    return _sha256(stored, status.st_ino, status.st_size, status.st_mtime_ns) == digest


@cache
def _sha256(path: Path, *state: int) -> str:
    """The hash of a file, read once while its state is the same: most overlays have equal files."""
    return sha256(path)


def _replace(path: Path, source: Path) -> None:
    """Make ``path`` a link to ``source``, in one step."""
    aside = beside(path)
    os.link(source, aside)
    try:
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)  # it stays if both were links to one file already


def sweep(cache: Path) -> None:
    """Delete the contents that no overlay has any more."""
    for path in (cache / FOLDER).glob("*/*"):
        if path.lstat().st_nlink == 1:
            path.unlink(missing_ok=True)
