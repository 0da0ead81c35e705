"""Overlays on disks: those in the cache are listed, measured and deleted; nodes get copies.

Many nodes that import from one folder slow it down, so each has a copy on a disk of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.bugs.api.spec import Defect
from harness.bugs.pins import Stack
from harness.releases import contents, overlay
from harness.releases.overlay import Overlay, lock_file
from harness.system.files import folder_whole, locked, writing


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


KEPT = 8
"""Copies that stay on the disk for the next tasks."""


@contextmanager
def borrowed_copy(
    stack: Stack, defects: Sequence[Defect], cache: Path, disk: Path
) -> Iterator[Overlay]:
    """An overlay as ``overlay.borrow``, used from a copy under ``disk``."""
    name = overlay.key(stack, defects)
    with overlay.borrow(stack, defects, cache) as shared:
        _copy(shared.folder, disk, name)
    with overlay.borrow(stack, defects, disk) as local:
        yield local


def _copy(shared: Path, disk: Path, name: str) -> None:
    """Copy an overlay to the disk, unless it is there; remove copies that were not used lately."""
    target = disk / "overlays" / name
    with writing(disk, "TMPDIR"):
        while not _is_used_now(target):  # polls as overlay.build does: users hold the lock shared
            with locked(overlay.lock_file(disk, name), wait=False) as has_lock:
                if has_lock and not target.is_dir():
                    with folder_whole(target) as aside:
                        shutil.copytree(shared, aside, symlinks=True, dirs_exist_ok=True)
            time.sleep(0.05)
        copies = sorted(folders(disk), key=_last_use)
        delete(disk, *(old.name for old in copies[:-KEPT]))


def _is_used_now(folder: Path) -> bool:
    """Note that a folder is used; False if there is none."""
    try:
        os.utime(folder)
    except FileNotFoundError:
        return False
    return True


def _last_use(folder: Path) -> float:
    """When a folder was used last; 0 if another task has deleted it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
