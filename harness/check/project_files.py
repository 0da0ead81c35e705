"""Files in which a project declares what it needs: pyproject.toml, setup.cfg, Pipfile,
environment.yml.

Each becomes lines of a requirements file. An extra or a dependency group counts only if it is
named: ``pyproject.toml[train]``. In a project's folder, the file that says best what the project
installs is read.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.check import conda_environment, pyproject, source
from harness.check.sections import Content, Option, key, names
from harness.check.source import PackageFile, content_of
from harness.system.errors import UserError

YAML = (".yml", ".yaml")
"""The endings of conda's files: only their lists for pip may have options, as requirements files
have them."""

PIPFILE = "Pipfile"
KINDS = ("pyproject.toml", "setup.cfg", PIPFILE, "environment.yml", "environment.yaml")


@dataclass(frozen=True)
class Declared:
    """What a project declares."""

    lines: Sequence[tuple[str, str]]
    """Where each requirement is, ``pyproject.toml, project.dependencies``, and its line."""
    python: str = ""
    """The Pythons that it is for, ``>=3.10``; empty if it does not say."""
    choices: Sequence[str] = ()
    """The extras and groups that were not chosen."""
    notes: Sequence[str] = ()
    """What was left out or left open, a line each."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """The packages whose versions could not be read, and why."""


class NothingDeclared(UserError):
    """A file is valid, and names no dependencies: a pyproject.toml may only configure tools."""


SETUP = (
    "setup.py is code, and is not run: install the project, and name its Python with --python, or "
    "'pip freeze | distributed-bugs check -r -' there"
)


def is_one(source: PackageFile) -> bool:
    """Whether a file declares the needs of a project. A YAML file is conda's, whatever its name."""
    return source.path.name in KINDS or source.path.suffix in YAML


def declared(source: PackageFile) -> Declared:
    """The requirements in a file. Raises UserError if it is damaged or declares none."""
    content = _read(source)
    sections = content.sections.values()
    others, keys = names(sections), {"", *map(key, source.chosen)}
    if unknown := sorted(keys - {"", *map(key, others)}):
        available = ", ".join(others) or "none"
        raise UserError(f"{source.name} has no extra or group {unknown[0]}; it has: {available}")
    chosen = [section for section in sections if key(section.name) in keys]
    lines = [(f"{source.name}, {where}", line) for where, line in content.lines(chosen)]
    for where, line in lines:
        if line.startswith("-") and not (isinstance(line, Option) or source.path.suffix in YAML):
            raise UserError(f"{where}: '{line}' is refused: a requirement begins with a name")
    if not lines and not content.unknown:
        raise NothingDeclared(
            f"{source.name} names no dependencies"
            + (f" but those of {', '.join(others)}: {source.name}[NAME]" if others else "")
            + "".join(f"; {note}" for note in content.notes)
        )
    choices = [name for name in others if key(name) not in keys]
    return Declared(lines, content.python, choices, content.notes, content.unknown)


def _read(source: PackageFile) -> Content:
    """What a file declares."""
    suffix, name = source.path.suffix, source.name
    try:
        if suffix in YAML:
            return conda_environment.read(content_of(name, source.text, "YAML"), name)
        if suffix == ".cfg":
            return _setup_cfg(source.text, name)
        table = content_of(name, source.text, "TOML")
        reader = pyproject.read_pipfile if source.path.name == PIPFILE else pyproject.read
        return reader(table, name)
    except (ValueError, configparser.Error) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"{name} cannot be read: {why}") from None


def _setup_cfg(text: str, file: str) -> Content:
    config, content = configparser.ConfigParser(interpolation=None), Content()
    config.read_string(text)

    def lines(value: str) -> list[str]:
        if value.strip().startswith("file:"):
            return [Option(f"-r {name.strip()}") for name in value.strip()[5:].split(",")]
        return [line.strip() for line in value.splitlines() if line.strip()]

    required = config.get("options", "install_requires", fallback="")
    content.add("", "install_requires", lines(required))
    if config.has_section("options.extras_require"):
        for name, value in config.items("options.extras_require"):
            content.add(name, f"extras_require.{name}", lines(value))
    name = config.get("metadata", "name", fallback="")
    pyproject.own_extras(content, name, file, "extras_require")
    content.python = config.get("options", "python_requires", fallback="")
    return content


LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
OTHERS = ("requirements.txt", *KINDS)


def in_folder(name: str) -> tuple[str, str]:
    """The file to read for a name; for a folder, also a line that says which file was read.

    Lock files come first. Raises UserError for a folder in which no file names dependencies.
    """
    folder, chosen = Path(name), ""
    if not folder.is_dir() and name.endswith("]"):  # .[train]
        before, _, chosen = name.rpartition("[")
        folder = Path(before)
    if folder.name == "setup.py":
        raise UserError(SETUP)
    if not folder.is_dir():
        return name, ""
    candidates = [candidate for candidate in (*LOCKS, *OTHERS) if (folder / candidate).is_file()]
    usable = [candidate for candidate in candidates if _says_something(folder / candidate)]
    if chosen:
        usable = [candidate for candidate in usable if candidate in KINDS]
    if not usable:
        raise UserError(
            f"{name} has none of {', '.join((*LOCKS, *OTHERS))} that names dependencies"
            + source.others_in(folder, (*LOCKS, *OTHERS))
            + (f"; {SETUP}" if (folder / "setup.py").is_file() else "")
        )
    file, *others = usable
    ending = f"; {', '.join(others)} not read" if others else ""
    suffix = f"[{chosen}" if chosen else ""
    return f"{folder / file}{suffix}", f"{name}: {file} was read{ending}"


def _says_something(file: Path) -> bool:
    """Whether a file names dependencies or is damaged; its reader then reports the damage."""
    if file.name not in KINDS:
        return True
    package_file: PackageFile = source.read_file(file)
    try:
        declared(package_file)
    except NothingDeclared:
        return False
    except UserError:
        return True
    return True
