"""The overlays in the cache: list them, measure them, delete them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.files import locked
from harness.upstream.overlay import lock_file


def folders(cache: Path) -> list[Path]:
    """The folders of all overlays in the cache."""
    folder = cache / "overlays"
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def disk_use(folder: Path, seen: set[int] | None = None) -> int:
    """The bytes in a folder. A file with several links counts once; ``seen`` are known inodes."""
    seen = set() if seen is None else seen
    total = 0
    for path in folder.rglob("*"):
        stat = path.lstat()
        if stat.st_ino not in seen and not path.is_dir():
            seen.add(stat.st_ino)
            total += stat.st_size
    return total


def delete(cache: Path, name: str) -> bool:
    """Delete one overlay; False if a run uses it now."""
    # The lock file stays: another process may wait for it.
    with locked(lock_file(cache, name), wait=False) as held:
        if held:
            folder = cache / "overlays" / name
            aside = folder.rename(folder.with_name(f".{name}.{os.getpid()}"))
            shutil.rmtree(aside)
        return held


def delete_unfinished(cache: Path) -> None:
    """Delete the unfinished overlays of processes that were killed."""
    for aside in (cache / "overlays").glob(".*.*"):
        with locked(lock_file(cache, aside.name.split(".")[1]), wait=False) as held:
            if held:
                shutil.rmtree(aside, ignore_errors=True)
