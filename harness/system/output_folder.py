"""A folder that a command fills, such as the site: replaced completely, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.system.errors import UserError
from harness.system.files import new_folder_beside, write_whole, writing

Files = Mapping[str, str | bytes]
"""The content of each file by its path in the folder."""


@dataclass(frozen=True)
class Output:
    """What a command writes into a folder of its own."""

    name: str
    """For messages, with its article: ``a site``."""
    mark: str
    """The name of the file that lists all files. A folder with other files is not replaced."""
    maker: str
    """The command."""


def refuse_unless_ours(out: Path, output: Output) -> None:
    """Raise UserError unless ``out`` is missing, empty, or such an output and nothing else."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is not a folder: name a new one, or {output.name} to replace")
    if not out.is_dir():
        return
    foreign = sorted(_present(out) - _made(out, output))
    if foreign:
        raise UserError(
            f"{out} contains a file that is not part of {output.name} ({foreign[0]}): name a new "
            f"or empty folder, or {output.name} to replace"
        )


def put(out: Path, files: Files, output: Output) -> None:
    """Write the files to a temporary folder, then replace ``out`` with it.

    Raises the errors of ``refuse_unless_ours``, and Inconclusive if it cannot be written; then the
    old folder is unchanged.
    """
    refuse_unless_ours(out, output)
    with writing(out, "--out"):
        aside = new_folder_beside(out)
        try:
            _write(aside, files, output)
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


def _made(folder: Path, output: Output) -> set[str]:
    """The files of the output in a folder; empty if there is none."""
    try:
        content = json.loads((folder / output.mark).read_text(encoding="utf-8"))
        ours = content["made by"] == output.maker
        return {output.mark, *content["files"]} if ours else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _write(folder: Path, files: Files, output: Output) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    made = {"made by": output.maker, "files": sorted(files)}
    write_whole(folder / output.mark, json.dumps(made) + "\n")


def _replace(out: Path, aside: Path) -> None:
    """Rename; if that fails, the old folder is restored."""
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
