"""Copies of overlays on a node's own disk: many nodes that import from one folder slow it down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.api.spec import Defect
from harness.overlays import overlay, overlay_cache
from harness.overlays.overlay import Overlay
from harness.system.files import locked, new_folder_beside, writing
from harness.upstream.pins import Stack

KEPT = 8
"""Copies that stay on the disk for the next tasks."""


@contextmanager
def borrowed(stack: Stack, defects: Sequence[Defect], cache: Path, disk: Path) -> Iterator[Overlay]:
    """An overlay as ``overlay.borrowed``, used from a copy under ``disk``."""
    name = overlay.key(stack, defects)
    with overlay.borrowed(stack, defects, cache) as shared:
        _copy(shared.folder, disk, name)
    with overlay.borrowed(stack, defects, disk) as local:
        yield local


def _copy(shared: Path, disk: Path, name: str) -> None:
    """Copy an overlay to the disk, unless it is there; removes those that were not used lately."""
    target = disk / "overlays" / name
    with writing(disk, "TMPDIR"), locked(overlay.lock_file(disk, name)):
        if not target.is_dir():
            aside = new_folder_beside(target)
            try:
                shutil.copytree(shared, aside, symlinks=True, dirs_exist_ok=True)
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        os.utime(target)
        copies = sorted(overlay_cache.folders(disk), key=lambda folder: folder.stat().st_mtime)
        overlay_cache.delete(disk, *(old.name for old in copies[:-KEPT]))
