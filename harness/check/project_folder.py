"""Which file of a project's folder says best what it installs."""

from __future__ import annotations

from pathlib import Path

from harness.check import project_files, source
from harness.check.source import Source
from harness.system.errors import UserError

LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
OTHERS = ("requirements.txt", *project_files.KINDS)


def in_folder(name: str) -> tuple[str, str]:
    """The file to read for a name, and a line that says so if the name is that of a folder.

    A lock file comes first, then what names most. Raises UserError for a folder without one.
    """
    folder, chosen = Path(name), ""
    if not folder.is_dir() and name.endswith("]"):  # .[train]
        before, _, chosen = name.rpartition("[")
        folder = Path(before)
    if not folder.is_dir():
        return name, ""
    there = [each for each in (*LOCKS, *OTHERS) if (folder / each).is_file()]
    usable = [each for each in there if _says_something(folder / each)]
    if chosen:
        usable = [each for each in usable if each in project_files.KINDS]
    if not usable:
        raise UserError(
            f"{name} has none of {', '.join((*LOCKS, *OTHERS))} that names dependencies"
            + "".join(f"; it has {each.name}" for each in sorted(folder.glob("*requirements*")))
        )
    first, *others = usable
    also = f"; {', '.join(others)} not read" if others else ""
    suffix = f"[{chosen}" if chosen else ""
    return f"{folder / first}{suffix}", f"{name}: {first} was read{also}"


def _says_something(file: Path) -> bool:
    """Whether a file names dependencies: a pyproject.toml may only configure tools."""
    if file.name not in project_files.KINDS:
        return True
    found: Source = source.read_file(file)
    try:
        project_files.declared(found)
    except UserError:
        return False
    return True
