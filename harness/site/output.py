"""Writes the site to its folder: replaces a site that is there completely, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness.errors import UserError
from harness.files import new_folder_beside, write_whole, writing

MARK = "site.json"
"""The file that lists the files of a site. A folder with other files is not replaced."""

MAKER = "python -m harness site"

Files = Mapping[str, str | bytes]
"""A site: the content of each file by its path in the folder."""


def refuse_unless_ours(out: Path) -> None:
    """Raise UserError unless ``out`` is missing, empty, or a site and nothing else."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is not a folder: name a new one, or a site to replace")
    if not out.is_dir():
        return
    foreign = sorted(_present(out) - _made(out))
    if foreign:
        raise UserError(
            f"{out} contains a file that is not part of a site ({foreign[0]}): name a new or empty "
            "folder, or a site to replace"
        )


def put(out: Path, files: Files) -> None:
    """Write a site to a temporary folder, then replace ``out`` with it.

    Raises the errors of ``refuse_unless_ours``, and Inconclusive if it cannot be written; then the
    old site is unchanged.
    """
    refuse_unless_ours(out)
    with writing(out, "--out"):
        aside = new_folder_beside(out)
        try:
            _write(aside, files)
            _replace(out, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _present(folder: Path) -> set[str]:
    """The files, links and empty folders in a folder, by their paths in it."""
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
    """The files of the site in a folder; empty if there is none."""
    try:
        content = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return {MARK, *content["files"]} if content["made by"] == MAKER else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    write_whole(folder / MARK, json.dumps({"made by": MAKER, "files": sorted(files)}) + "\n")


def _replace(out: Path, aside: Path) -> None:
    """Rename; if that fails, the old site is restored."""
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
