"""Files in which a project declares what it needs: pyproject.toml, setup.cfg, Pipfile,
environment.yml.

Each becomes lines of a requirements file. An extra or a dependency group counts only if it is
named: ``pyproject.toml[train]``. In a project's folder, the file that says best what the project
installs is read.
"""

from __future__ import annotations

import configparser
import os.path
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from harness.check import conda_environment, lock_files, pyproject, source, unread
from harness.check.lock_files import Lock
from harness.check.sections import Content, Option, key, names
from harness.check.source import PackageFile, content_of
from harness.system.errors import UserError
from harness.system.text import short

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


@dataclass(frozen=True)
class ProjectFile(PackageFile):
    """A file that declares the needs of a project. A YAML file is conda's, whatever its name."""

    @cached_property
    def document(self) -> Any:
        """What the text says, as YAML, TOML, or the sections of setup.cfg."""
        if self.path.suffix == ".cfg":
            config = configparser.ConfigParser(interpolation=None)
            config.read_string(_squeezed(self.text))
            return config
        return content_of(self.name, self.text, "YAML" if self.path.suffix in YAML else "TOML")

    @cached_property
    def content(self) -> Content:
        """What it declares for all of its users. Raises UserError if it is damaged."""
        readers: dict[str, Callable[[Any, str], Content]] = {
            ".cfg": _setup_cfg,
            **dict.fromkeys(YAML, conda_environment.read),
        }
        reader = pyproject.read_pipfile if self.path.name == PIPFILE else pyproject.read
        try:
            return readers.get(self.path.suffix, reader)(self.document, self.name)
        except (ValueError, configparser.Error) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"{self.name} cannot be read: {why}") from None

    def declared(self, chosen: Iterable[str]) -> Declared:
        """The requirements, also of the chosen extras and groups. Raises UserError if the file is
        damaged or declares none."""
        sections = self.content.sections.values()
        others, keys = names(sections), {"", *map(key, chosen)}
        if unknown := sorted(keys - {"", *map(key, others)}):
            available = ", ".join(others) or "none"
            raise UserError(f"{self.name} has no extra or group {unknown[0]}; it has: {available}")
        selection = [section for section in sections if key(section.name) in keys]
        lines = [(f"{self.name}, {where}", line) for where, line in self.content.lines(selection)]
        for where, line in lines:
            if line.startswith("-") and not (isinstance(line, Option) or self.path.suffix in YAML):
                raise UserError(
                    f"{where}: '{short(line)}' is refused: a requirement begins with a name"
                )
        if not lines and not self.content.unknown:
            raise NothingDeclared(
                f"{self.name} names no dependencies"
                + (f" but those of {', '.join(others)}: {self.name}[NAME]" if others else "")
                + "".join(f"; {note}" for note in self.content.notes)
            )
        choices = [name for name in others if key(name) not in keys]
        content = self.content
        return Declared(lines, content.python, choices, content.notes, content.unknown)

    def declares(self, chosen: Iterable[str] = (), *, damaged: bool = False) -> bool:
        """Whether it declares dependencies; ``damaged`` is the answer for a damaged file."""
        try:
            self.declared(chosen)
        except NothingDeclared:
            return False
        except UserError:
            return damaged
        return True

    def says_all(self) -> bool:
        """Whether this file alone, without extras, says what the project needs: no other file and
        no code adds to it."""
        if self.path.suffix != ".toml" or not isinstance(self.document.get("project"), Mapping):
            return self.declares()
        dynamic = self.document["project"].get("dynamic")
        return not (isinstance(dynamic, list) and "dependencies" in dynamic) or self.declares()

    def project(self) -> str:
        """The name of the project in a pyproject.toml; empty if it has none there."""
        table = self.document.get("project") if self.path.suffix == ".toml" else None
        name = table.get("name") if isinstance(table, Mapping) else None
        try:
            return canonicalize_name(name, validate=True) if isinstance(name, str) else ""
        except InvalidName:
            return ""


def _squeezed(text: str) -> str:
    """A text with one blank between words: configparser takes minutes for thousands of them."""
    lines = ((line, " ".join(line.split())) for line in text.split("\n"))
    return "\n".join(line[: len(line) - len(line.lstrip())] + words for line, words in lines)


def parsed(file: PackageFile) -> PackageFile:
    """The file as what it is. Raises UserError for a file that is not read, with what to give
    instead."""
    if why := unread.by_name(file.path.name) or unread.by_text(file.path, file.text):
        raise UserError(f"{file.name} is not read: {why}")
    return classified(file)


def classified(file: PackageFile) -> PackageFile:
    """The file as a ProjectFile, as a Lock, or, with lines of requirements, as it is."""
    name, is_yaml = file.path.name, file.path.suffix in YAML
    if name in KINDS or (is_yaml and not lock_files.is_of_conda(file)):
        return ProjectFile(file.name, file.path, file.text, file.chosen)
    if syntax := lock_files.syntax_of(file):
        return Lock(file.name, file.path, file.text, file.chosen, syntax)
    return file


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


def _setup_cfg(config: configparser.ConfigParser, file: str) -> Content:
    content = Content()

    def lines(value: str) -> list[str]:
        if value.strip().startswith("file:"):
            return [Option(f"-r {name.strip()}") for name in value.strip()[5:].split(",")]
        parts = value.splitlines() if "\n" in value else value.split(";")  # as setuptools does
        texts = (re.sub(r"(^|\s)#.*", "", part).strip() for part in parts)
        return [text for text in texts if text]

    required = config.get("options", "install_requires", fallback="")
    content.add("", "install_requires", lines(required))
    if config.has_section("options.extras_require"):
        for name, value in config.items("options.extras_require"):
            content.add(name, f"extras_require.{name}", lines(value))
    name = config.get("metadata", "name", fallback="")
    pyproject.own_extras(content, name, file, "extras_require")
    content.python = config.get("options", "python_requires", fallback="")
    return content


LOCKS = (
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock"),
    *("pixi.lock", "conda-lock.yml"),
)
CONDA = ("conda.yml", "conda.yaml", "env.yml", "env.yaml")
"""Other names of conda's environment.yml. Files of other tools have them, too."""
OTHERS = ("requirements.txt", *KINDS, *CONDA)


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
        candidate: ProjectFile(file.name, file.path, file.text, source.names_in(chosen))
        for candidate in candidates
        if candidate in (*KINDS, *CONDA)
        for file in [source.read_inside(folder / candidate)]
    }
    usable = [
        candidate
        for candidate in candidates
        # the reader of a damaged file reports the damage
        if candidate not in projects or projects[candidate].declares(damaged=candidate not in CONDA)
    ]
    if chosen:
        usable = [candidate for candidate in usable if candidate in KINDS]
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
    return file, f"{name}: {obstacles}{chosen_name} was read{ending}"


def _below(folder: Path, names: Sequence[str]) -> str:
    """The folders below with files of these names, and how to check the first; empty if none."""
    return unread.named(unread.folders_with(folder, names))


def locks_below(name: str) -> str:
    """A note about lock files in the folders below a folder; empty if there are none."""
    text = _below(Path(name), LOCKS) if Path(name).is_dir() else ""
    return f"{name}: lock files of other folders were not read: {text}" if text else ""
