"""Where the site goes: a folder that is ours, replaced whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness.errors import UserError
from harness.files import new_folder_beside, write_whole, writing

MARK = "site.json"
"""Names what a site of ours consists of: what else lies in its folder is somebody's, and stays."""

MAKER = "python -m harness site"

Files = Mapping[str, str | bytes]
"""A site: the content of each file by its path in the folder."""


def refuse_unless_ours(out: Path) -> None:
    """Raise UserError unless there is nothing at ``out``, or a site of ours and nothing else."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is no folder: name one that is new, or a site to replace")
    if not out.is_dir():
        return
    strange = sorted(_present(out) - _made(out))
    if strange:
        raise UserError(
            f"{out} holds what is no site of ours ({strange[0]}): name a folder that is new or "
            "empty, or a site to replace"
        )


def put(out: Path, files: Files) -> None:
    """Write a site aside, then have it take the place of the one that is there.

    Raises as ``refuse_unless_ours``, and Inconclusive where it cannot be written; what was there
    before is still there then.
    """
    refuse_unless_ours(out)
    with writing(out, "--out"):
        aside = new_folder_beside(out)
        try:
            _write(aside, files)
            _take_the_place(out, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _present(folder: Path) -> set[str]:
    """The files in a folder, and the folders with nothing in them, by their paths in it."""
    found = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    empty = [Path(root) for root, inside, names in os.walk(folder) if not (inside or names)]
    links = [
        Path(r, name)
        for r, inside, _ in os.walk(folder)
        for name in inside
        if Path(r, name).is_symlink()
    ]
    return {path.relative_to(folder).as_posix() for path in (*found, *empty, *links)} - {"."}


def _made(folder: Path) -> set[str]:
    """What a site of ours in a folder consists of; nothing where there is none."""
    try:
        told = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return {MARK, *told["files"]} if told["made by"] == MAKER else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    write_whole(folder / MARK, json.dumps({"made by": MAKER, "files": sorted(files)}) + "\n")


def _take_the_place(out: Path, aside: Path) -> None:
    """Rename; the old site is brought back where the new one cannot come."""
    if not out.exists():
        aside.rename(out)
        return
    old = aside.with_name(f"{aside.name}.old")
    out.rename(old)
    try:
        aside.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old)
