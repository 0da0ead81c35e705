"""The file of a folder that says best what the project there installs."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.check import source, unread
from harness.check.formats import ENVIRONMENTS, ProjectFile, classified, parsed
from harness.check.source import PackageFile
from harness.system.errors import UserError
from harness.system.text import short


def of_folder(folder: Path) -> ProjectFile | None:
    """The file that says what the project in a folder needs; None if only code does."""
    for path in declaring(folder):
        file = parsed(source.read_inside(path)) if path.name != "setup.py" else None
        if isinstance(file, ProjectFile) and file.says_all():
            return file
    return None


def declaring(folder: Path) -> list[Path]:
    """The files of a folder that can say what the project there needs."""
    files = (folder / name for name in ("pyproject.toml", "setup.cfg", "setup.py"))
    return [file for file in files if os.path.isfile(file)]


LOCKS = (
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock"),
    *("pixi.lock", "conda-lock.yml"),
)
CONDA = ("conda.yml", "conda.yaml", "env.yml", "env.yaml")
"""Other names of conda's environment.yml. Files of other tools have them, too."""
PROJECTS = ("pyproject.toml", "setup.cfg", "Pipfile", *ENVIRONMENTS)
OTHERS = ("requirements.txt", *PROJECTS, *CONDA)


def opened(name: str) -> tuple[PackageFile, str]:
    """The file with a name; of a folder, the file to read there, and a line that says which.

    Lock files come first. Raises UserError for a folder in which no file names dependencies.
    """
    folder, chosen = Path(name), ""
    if not folder.is_dir() and name.endswith("]"):  # .[train]
        before, _, chosen = name[:-1].rpartition("[")
        folder = Path(before)
    if not folder.is_dir():
        if why := unread.by_name(folder.name):  # before it is read: an archive is no text
            raise UserError(f"{short(name)} is not read: {why}")
        return parsed(source.read(name)), ""
    candidates = [candidate for candidate in (*LOCKS, *OTHERS) if (folder / candidate).is_file()]
    projects = {
        candidate: classified(source.read_inside(folder / candidate))
        for candidate in candidates
        if candidate in (*PROJECTS, *CONDA)
    }
    usable = [
        candidate
        for candidate in candidates
        # the reader of a damaged file reports the damage
        if not isinstance(file := projects.get(candidate), ProjectFile)
        or file.declares(damaged=candidate not in CONDA)
    ]
    if chosen:
        usable = [candidate for candidate in usable if candidate in PROJECTS]
    if not usable:
        raise UserError(
            f"{name} has none of {', '.join((*LOCKS, *OTHERS))} that names dependencies"
            + source.others_in(folder, (*LOCKS, *OTHERS))
            + "".join(f"; {why}" for why in dict.fromkeys(unread.in_folder(folder)))
            + "".join(f"; {text}" for text in [_below(folder, (*LOCKS, *OTHERS))] if text)
        )
    chosen_name, *others = usable
    ending = f"; {', '.join(others)} not read" if others else ""
    obstacles = source.obstacles_in(folder, (*LOCKS, *OTHERS))
    file = projects.get(chosen_name) or classified(source.read_inside(folder / chosen_name))
    file = replace(file, chosen=source.names_in(chosen))
    return file, f"{name}: {obstacles}{chosen_name} was read{ending}"


def _below(folder: Path, names: Sequence[str]) -> str:
    """The folders below with files of these names, and how to check the first; empty if none."""
    return unread.named(unread.folders_with(folder, names))


def locks_below(name: str) -> str:
    """A note about lock files in the folders below a folder; empty if there are none."""
    text = _below(Path(name), LOCKS) if Path(name).is_dir() else ""
    return f"{name}: lock files of other folders were not read: {text}" if text else ""
