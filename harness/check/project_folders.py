"""The file of a folder that says best what the project there installs."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
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


@dataclass(frozen=True)
class Selection:
    """A file, and for a folder, which of its files it is."""

    source: Declaration | Listing
    choice: str = ""
    """``backend: uv.lock was read``; empty for a file that the user named."""
    others: tuple[str, ...] = ()
    """The names of the folder's other files."""

    def note(self, read: Iterable[str] = ()) -> str:
        """Which file was read, and which others were not: ``read`` was, as by ``-e .``."""
        others = [name for name in self.others if name not in read]
        return self.choice + (f"; {', '.join(others)} not read" if others else "")


def opened(name: str) -> Selection:
    """The file with a name, or the file to read in the folder with a name.

    Lock files come first. Raises UserError for a folder in which no file names dependencies.
    """
    folder, chosen = Path(name), ""
    if not folder.is_dir() and name.endswith("]"):  # .[train]
        before, _, chosen = name[:-1].rpartition("[")
        folder = Path(before)
    if not folder.is_dir():
        if why := unread.by_name(folder.name):  # before it is read: an archive is no text
            raise UserError(f"{short(name)} is not read: {why}")
        return Selection(source_of(source.read(name)))
    candidates = [name for name in NAMES if (folder / name).is_file()]
    if chosen:
        candidates = [name for name in candidates if name in PROJECTS]
    names = source.names_in(chosen)

    @cache
    def file_of(name: str) -> Declaration | Listing:
        return classified(replace(source.read_inside(folder / name), chosen=names))

    def declares(name: str) -> bool:
        # the reader of a damaged file reports the damage
        return file_of(name).declares(damaged=name not in CONDA)

    best = next(filter(declares, candidates), "")
    specials = "".join(  # pipes, and links to nothing
        f"it has {name}, which is no file; "
        for name in NAMES
        if os.path.lexists(path := folder / name) and not (path.is_file() or path.is_dir())
    )
    if not best:
        reasons = [
            f"{name} has none of {', '.join(NAMES)} that names dependencies to check",
            *(
                file.emptiness
                for name in candidates
                if name in PROJECTS and isinstance(file := file_of(name), Declaration)
            ),
            *(f"it has {path.name}" for path in sorted(folder.glob("*requirements*"))),
            *([f"{specials}name it with -r"] if specials else []),
            *dict.fromkeys(_unread_in(folder)),
            *filter(None, [_below(folder, NAMES)]),
        ]
        raise UserError("; ".join(reasons))
    others = [
        name
        for name in candidates[candidates.index(best) + 1 :]
        if name not in (*PROJECTS, *CONDA) or declares(name)
    ]
    if best not in LOCKS:
        others += [name for name in ("setup.py", "pixi.toml") if (folder / name).is_file()]
    return Selection(file_of(best), f"{name}: {specials}{best} was read", tuple(others))


def locks_below(name: str) -> str:
    """A note about lock files in the folders below a folder; empty if there are none."""
    text = _below(Path(name), LOCKS) if Path(name).is_dir() else ""
    return f"{name}: lock files of other folders were not read: {text}" if text else ""


def _unread_in(folder: Path) -> Iterator[str]:
    """What to do instead of reading the files of a folder that only have other forms."""
    for path in sorted(folder.iterdir()):
        for pattern, why in unread.IN_FOLDER:
            if re.fullmatch(pattern, path.name.lower()) and path.is_file():
                yield why


HIDDEN = {
    *("node_modules", "site-packages", "vendor", "third_party", "third-party", "external"),
    *("submodules", "build", "dist", "venv", "env", "tests", "test"),
}
"""Folders with other people's code, and with what is no project of the user's."""
LEVELS = 2
"""How deep folders are looked at."""
MOST = 500
"""Folders that are looked at."""
SHOWN = 3
"""Folders that are named."""


def _below(folder: Path, names: Sequence[str]) -> str:
    """The folders below that have a file with one of these names, the first of these names, and
    how to check the first folder: ``backend has uv.lock: -r backend``; empty if there are none."""
    places: list[tuple[Path, str]] = []
    for path, folders, files in islice(os.walk(folder), MOST):
        depth = len(Path(path).relative_to(folder).parts)
        visible = (f for f in folders if not f.startswith(".") and f.lower() not in HIDDEN)
        folders[:] = sorted(visible) if depth < LEVELS else []
        if depth and (best := next((name for name in names if name in files), "")):
            places.append((Path(path), best))
    texts = [f"{path} has {file}" for path, file in places[:SHOWN]]
    if len(places) > SHOWN:
        texts.append(f"{len(places) - SHOWN} more folders have such files")
    return f"{', '.join(texts)}: -r {places[0][0]}" if places else ""
