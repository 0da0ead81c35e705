"""The overlays in the cache are listed, measured and deleted."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.releases import contents
from harness.releases.overlay import lock_file
from harness.system.files import locked


def folders(cache: Path) -> list[Path]:
    """The folders of all overlays in the cache."""
    folder = cache / "overlays"
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def disk_use(cache: Path) -> int:
    """The bytes in all overlays. A file with several links counts once."""
    return sum({s.st_ino: s.st_size for folder in folders(cache) for s in _files(folder)}.values())


def own_use(folder: Path) -> int:
    """The bytes that deleting an overlay frees: those of files that no other overlay has."""
    files = list(_files(folder))
    links = Counter(file.st_ino for file in files)
    sizes = {f.st_ino: f.st_size for f in files if f.st_nlink - links[f.st_ino] <= IN_CONTENTS}
    return sum(sizes.values())


IN_CONTENTS = 1
"""The links of a file that are not in an overlay."""


def _files(folder: Path) -> Iterator[os.stat_result]:
    for path, _, names in os.walk(folder):
        for name in names:
            yield os.lstat(f"{path}{os.sep}{name}")


def delete(cache: Path, *names: str) -> list[str]:
    """Delete overlays, except those that a run uses now; returns the deleted ones."""
    deleted = [name for name in names if _delete(cache, name)]
    contents.sweep(cache)
    return deleted


def _delete(cache: Path, name: str) -> bool:
    # The lock file stays: another process may wait for it.
    with locked(lock_file(cache, name), wait=False) as has_lock:
        if has_lock:
            folder = cache / "overlays" / name
            if folder.is_symlink():  # what it points to is not ours
                folder.unlink()
                return True
            aside = folder.rename(folder.with_name(f".{name}.{os.getpid()}"))
            shutil.rmtree(aside)
        return has_lock


def delete_unfinished(cache: Path) -> None:
    """Delete the unfinished overlays of processes that were killed."""
    for aside in (cache / "overlays").glob(".*.*"):
        with locked(lock_file(cache, aside.name.split(".")[1]), wait=False) as has_lock:
            if has_lock:
                shutil.rmtree(aside, ignore_errors=True)
