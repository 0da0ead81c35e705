"""The formats of files that name packages: one table says how a file is recognised and read.

A project's file declares what it needs: it becomes lines of a requirements file. An extra or a
dependency group counts only if it is named: ``pyproject.toml[train]``. A lock lists every package.
Any other file has lines of requirements.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from harness.check import conda_environment, conda_locks, lock_files, pyproject, unread
from harness.check.installed import Listed
from harness.check.sections import Content, Option, key, names
from harness.check.source import PackageFile, content_of
from harness.system.errors import UserError
from harness.system.text import short


class NothingDeclared(UserError):
    """A file is valid, and names no dependencies: a pyproject.toml may only configure tools."""


@dataclass(frozen=True)
class ParsedFile(PackageFile):
    """A file with a syntax of its own, and the function that reads its document."""

    syntax: str = ""
    reader: Callable[[Any, str], Any] = pyproject.read

    @cached_property
    def document(self) -> Any:
        return content_of(self.name, self.text, self.syntax)


class Lock(ParsedFile):
    """A file that lists all packages of an environment, and not what a project declares."""

    def entries(self) -> list[Listed]:
        """The packages that are for this platform and Python.

        Raises UserError for a damaged file, and Inconclusive for a lock file of an unknown version.
        """
        document = self.document
        try:
            return list(self.reader(document, self.name))
        except ValueError as error:
            why = short(str(error), 200)
            raise UserError(f"{self.name} is not a valid lock file: {why}") from None


class ProjectFile(ParsedFile):
    """A file that declares the needs of a project."""

    @cached_property
    def content(self) -> Content:
        """What it declares for all of its users. Raises UserError if it is damaged."""
        document = self.document
        try:
            content: Content = self.reader(document, self.name)
        except (ValueError, configparser.Error) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"{self.name} cannot be read: {why}") from None
        return content

    def lines(self, chosen: Iterable[str]) -> list[tuple[str, str]]:
        """Where each requirement is, ``pyproject.toml, project.dependencies``, and its line; also
        of the chosen extras and groups. Raises UserError if the file is damaged or has none."""
        sections = self.content.sections.values()
        keys = {"", *map(key, chosen)}
        others = names(sections)
        if unknown := sorted(keys - {"", *map(key, others)}):
            available = ", ".join(others) or "none"
            raise UserError(f"{self.name} has no extra or group {unknown[0]}; it has: {available}")
        selection = [section for section in sections if key(section.name) in keys]
        lines = [(f"{self.name}, {where}", line) for where, line in self.content.lines(selection)]
        for where, line in lines:
            # conda's lists for pip may have options, as requirements files have them
            if line.startswith("-") and not (isinstance(line, Option) or self.syntax == "YAML"):
                raise UserError(
                    f"{where}: '{short(line)}' is refused: a requirement begins with a name"
                )
        if not lines and not self.content.unknown:
            raise NothingDeclared(
                f"{self.name} names no dependencies"
                + (f" but those of {', '.join(others)}: {self.name}[NAME]" if others else "")
                + "".join(f"; {note}" for note in self.content.notes)
            )
        return lines

    def choices(self, chosen: Iterable[str]) -> Sequence[str]:
        """The extras and groups that were not chosen."""
        keys = {*map(key, chosen)}
        return [name for name in names(self.content.sections.values()) if key(name) not in keys]

    def declares(self, chosen: Iterable[str] = (), *, damaged: bool = False) -> bool:
        """Whether it declares dependencies; ``damaged`` is the answer for a damaged file."""
        try:
            self.lines(chosen)
        except NothingDeclared:
            return False
        except UserError:
            return damaged
        return True

    def says_all(self) -> bool:
        """Whether this file alone, without extras, says what the project needs: no other file and
        no code adds to it."""
        if not self._table():
            return self.declares()
        dynamic = self._table().get("dynamic")
        return not (isinstance(dynamic, list) and "dependencies" in dynamic) or self.declares()

    def project(self) -> str:
        """The name of the project in a pyproject.toml; empty if it has none there."""
        name = self._table().get("name")
        try:
            return canonicalize_name(name, validate=True) if isinstance(name, str) else ""
        except InvalidName:
            return ""

    def _table(self) -> Mapping[str, Any]:
        """The standard's table of a pyproject.toml; empty if it has none."""
        table = self.document.get("project") if self.path.suffix == ".toml" else None
        return table if isinstance(table, Mapping) else {}


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


@dataclass(frozen=True)
class Format:
    """A format, and the files that have it."""

    kind: type[ProjectFile] | type[Lock]
    syntax: str
    read: Callable[[Any, str], Any]
    names: tuple[str, ...] = ()
    """Names of files, or their endings: ``.toml``."""
    is_text: Callable[[str], object] = lambda text: False
    """Whether a text is of this format, whatever the file is called."""

    def fits(self, file: PackageFile) -> bool:
        is_named = file.path.name in self.names or file.path.suffix in self.names
        return is_named or bool(self.is_text(file.text))


YAML = (".yml", ".yaml")
JSON = re.compile(r"\s*(\{|\[(?!\[?[\w.-]+\]))")
"""The beginning of JSON. A TOML file may begin with a table, which is no list of JSON."""
TOML_PACKAGES = re.compile(r"^\[\[packages?\]\]", re.MULTILINE)
ENVIRONMENTS = ("environment.yml", "environment.yaml")
FORMATS = (
    Format(ProjectFile, "TOML", pyproject.read, ("pyproject.toml",)),
    Format(ProjectFile, "INI", _setup_cfg, ("setup.cfg",)),
    Format(ProjectFile, "TOML", pyproject.read_pipfile, ("Pipfile",)),
    Format(ProjectFile, "YAML", conda_environment.read, ENVIRONMENTS),
    Format(Lock, "YAML", conda_locks.read, ("pixi.lock",), conda_locks.is_lock),
    Format(ProjectFile, "YAML", conda_environment.read, YAML),
    Format(Lock, "JSON", lock_files.read_json, (".json",), JSON.match),
    Format(Lock, "TOML", lock_files.read_toml, lock_files.TOML, TOML_PACKAGES.search),
)
"""The first that fits a file is its format; a file that none fits has lines of requirements."""


def classified(file: PackageFile) -> PackageFile:
    """The file as a ProjectFile, as a Lock, or, with lines of requirements, as it is."""
    for each in FORMATS:
        if each.fits(file):
            facts = (file.name, file.path, file.text, file.chosen)
            return each.kind(*facts, each.syntax, each.read)
    return file


def parsed(file: PackageFile) -> PackageFile:
    """The file as what it is. Raises UserError for a file that is not read, with what to give
    instead."""
    if why := unread.by_name(file.path.name) or unread.by_text(file.path, file.text):
        raise UserError(f"{file.name} is not read: {why}")
    return classified(file)
