"""The file of a folder that says best what the project there installs."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.check import source, unread
from harness.check.formats import ENVIRONMENTS, Declaration, Listing, classified, source_of
from harness.system.errors import UserError
from harness.system.text import short


def of_folder(folder: Path) -> Declaration | None:
    """The file that says what the project in a folder needs; None if only code does."""
    for path in declaring(folder):
        file = source_of(source.read_inside(path)) if path.name != "setup.py" else None
        if isinstance(file, Declaration) and file.says_all():
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
NAMES = (*LOCKS, "requirements.txt", *PROJECTS, *CONDA)
"""The files that are read of a folder; the first of them says most."""


def opened(name: str) -> tuple[Declaration | Listing, str]:
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
        return source_of(source.read(name)), ""
    candidates = [name for name in NAMES if (folder / name).is_file()]
    if chosen:
        candidates = [name for name in candidates if name in PROJECTS]
    files = {
        candidate: classified(source.read_inside(folder / candidate))
        for candidate in candidates
        if candidate in (*PROJECTS, *CONDA)
    }
    usable = [
        candidate
        for candidate in candidates
        # the reader of a damaged file reports the damage
        if not isinstance(file := files.get(candidate), Declaration)
        or file.declares(damaged=candidate not in CONDA)
    ]
    if not usable:
        raise UserError(
            f"{name} has none of {', '.join(NAMES)} that names dependencies"
            + source.others_in(folder, NAMES)
            + "".join(f"; {why}" for why in dict.fromkeys(_unread_in(folder)))
            + "".join(f"; {text}" for text in [_below(folder, NAMES)] if text)
        )
    best, *others = usable
    ending = f"; {', '.join(others)} not read" if others else ""
    obstacles = source.obstacles_in(folder, NAMES)
    file = files.get(best) or classified(source.read_inside(folder / best))
    return (
        replace(file, chosen=source.names_in(chosen)),
        f"{name}: {obstacles}{best} was read{ending}",
    )


def locks_below(name: str) -> str:
    """A note about lock files in the folders below a folder; empty if there are none."""
    text = _below(Path(name), LOCKS) if Path(name).is_dir() else ""
    return f"{name}: lock files of other folders were not read: {text}" if text else ""


def _unread_in(folder: Path) -> Iterator[str]:
    """What to do instead of reading the files of a folder that only have other forms."""
    for entry in _entries(str(folder)):
        for pattern, why in unread.IN_FOLDER:
            if re.fullmatch(pattern, entry.name.lower()) and entry.is_file():
                yield why


HIDDEN = {
    *("node_modules", "site-packages", "vendor", "third_party", "third-party", "external"),
    *("submodules", "build", "dist", "venv", "env", "tests", "test"),
}
"""Folders with other people's code, and with what is no project of the user's."""
LEVELS = 2
"""How deep folders are looked at."""
MOST = 2_000
"""Entries of folders that are looked at."""
SHOWN = 3
"""Folders that are named."""


def _below(folder: Path, names: Sequence[str]) -> str:
    """The folders below that have a file with one of these names, the first of these names, and
    how to check the first folder: ``backend has uv.lock: -r backend``; empty if there are none."""
    files: dict[Path, list[str]] = {}
    for entry in _entries_below(folder):
        if entry.name in names and entry.is_file(follow_symlinks=False):
            files.setdefault(Path(entry.path).parent, []).append(entry.name)
    folders = [(path, min(those, key=names.index)) for path, those in sorted(files.items())]
    texts = [f"{path} has {file}" for path, file in folders[:SHOWN]]
    if len(folders) > SHOWN:
        texts.append(f"{len(folders) - SHOWN} more folders have such files")
    return f"{', '.join(texts)}: -r {folders[0][0]}" if folders else ""


def _entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of the folders below, of the nearest first, at most MOST. Links are not followed,
    and hidden folders are left out."""
    folders, count = [str(folder)], 0
    for _ in range(LEVELS):
        folders = [
            entry.path
            for above in folders
            for entry in _entries(above)
            if entry.is_dir(follow_symlinks=False)
            if not entry.name.startswith(".") and entry.name.lower() not in HIDDEN
        ]
        for entry in (entry for path in folders for entry in _entries(path)):
            yield entry
            count += 1
            if count == MOST:
                return


def _entries(path: str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none if it may not be read."""
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
