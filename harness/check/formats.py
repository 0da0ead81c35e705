"""The formats of files that name packages: one table says how a file is recognised and read.

A *declaration* says what a project needs, as a requirements file does. An extra or a dependency
group counts only if it is named: ``pyproject.toml[train]``. A *listing* has every package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import Error as ConfigParserError
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from harness.check import conda_environment, conda_locks, lock_files, poetry, pyproject, unread
from harness.check.installed import Installed
from harness.check.requirement_lines import Line, Option, parse_line, statements
from harness.check.sections import Content, key
from harness.check.source import PackageFile, content_of
from harness.system.errors import HarnessError, UserError
from harness.system.text import short


class NothingDeclared(UserError):
    """A file is valid, and names no dependencies: a pyproject.toml may only configure tools."""


@dataclass(frozen=True)
class ParsedFile(PackageFile):
    """A file with a syntax of its own, and the function that reads its document."""

    syntax: str = ""
    """Empty for lines of text."""
    reader: Callable[[Any, str], Any] = pyproject.read

    @cached_property
    def document(self) -> Any:
        return content_of(self.name, self.text, self.syntax) if self.syntax else self.text


class Listing(ParsedFile):
    """A file that lists all packages of an environment, and not what a project declares."""

    def packages(self) -> list[tuple[str, Installed]]:
        """The packages that are for this platform and Python; a name may come several times.

        Raises UserError for a damaged file, and Inconclusive for a lock file of an unknown version.
        """
        document = self.document
        try:
            return list(self.reader(document, self.name))
        except ValueError as error:
            why = short(str(error), 200)
            raise UserError(f"{self.name} is not a valid lock file: {why}") from None

    def declares(self, *, damaged: bool) -> bool:
        """Whether it lists packages; ``damaged`` is the answer for a damaged file."""
        try:
            return bool(self.packages())
        except HarnessError:
            return damaged


class Declaration(ParsedFile):
    """A file that declares the needs of a project."""

    @cached_property
    def content(self) -> Content:
        """What it declares for all of its users. Raises UserError if it is damaged."""
        document = self.document
        try:
            content: Content = self.reader(document, self.name)
        except (ValueError, ConfigParserError) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"{self.name} cannot be read: {why}") from None
        return content

    @property
    def emptiness(self) -> str:
        """What is said of it if it declares nothing for all of its users."""
        names = ", ".join(self.content.names())
        of_conda = self.reader is conda_environment.read  # it keeps no others
        return (
            f"{self.name} names no {'training library' if of_conda else 'dependencies'}"
            + (f" but those of {names}: {self.name}[NAME]" if names else "")
            + "".join(f"; {note}" for note in self.content.notes)
        )

    def lines(self, chosen: Iterable[str]) -> Iterator[tuple[str, Line]]:
        """Where each line is, ``pyproject.toml, project.dependencies``; also of the chosen extras
        and groups. Raises UserError if the file is damaged or has none."""
        names, chosen = self.content.names(), list(chosen)
        if unknown := sorted({*map(key, chosen)} - {*map(key, names)}):
            available = ", ".join(names) or "none"
            raise UserError(f"{self.name} has no extra or group {unknown[0]}; it has: {available}")
        lines = [(f"{self.name}, {where}", line) for where, line in self.content.lines(chosen)]
        if not lines and not self.content.is_plain:
            raise NothingDeclared(self.emptiness)
        return iter(lines)

    def choices(self, chosen: Iterable[str]) -> Sequence[str]:
        """The extras and groups that were not chosen."""
        keys = {*map(key, chosen)}
        return [name for name in self.content.names() if key(name) not in keys]

    def declares(self, chosen: Iterable[str] = (), *, damaged: bool = False) -> bool:
        """Whether it declares dependencies; ``damaged`` is the answer for a damaged file."""
        try:
            lines = self.lines(chosen)
        except NothingDeclared:
            return False
        except UserError:
            return damaged
        # a requirements file may only say which index to use
        return not self.content.is_plain or any(
            line.refusal or not all(isinstance(item, Option) for item in line.items)
            for _, line in lines
        )

    def says_all(self) -> bool:
        """Whether this file alone, without extras, says what the project needs: no other file and
        no code adds to it."""
        dynamic = self._table().get("dynamic")
        is_static = not (isinstance(dynamic, list) and "dependencies" in dynamic)
        return (bool(self._table()) and is_static) or self.declares()

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


def _read_requirements(text: str, file: str) -> Content:
    content = Content(is_plain=True)
    for number, line in statements(text):
        content.add("", f"line {number}", [parse_line(line)])
    return content


@dataclass(frozen=True)
class Format:
    """A format, and the files that have it."""

    kind: type[Declaration] | type[Listing]
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
CONDA_EXPORT = re.compile(r"(?:\w[\w-]*:.*\n|[ \t#-].*\n|\r?\n)*dependencies:")
"""A list of this name, after other keys: what ``conda env export`` prints."""
TOML_PACKAGES = re.compile(r"^\[\[packages?\]\]", re.MULTILINE)
ENVIRONMENTS = ("environment.yml", "environment.yaml")
FORMATS = (
    Format(Declaration, "TOML", pyproject.read, ("pyproject.toml",)),
    Format(Declaration, "INI", pyproject.read_setup_cfg, ("setup.cfg",)),
    Format(Declaration, "TOML", poetry.read_pipfile, ("Pipfile",)),
    Format(Declaration, "YAML", conda_environment.read, ENVIRONMENTS),
    Format(Listing, "YAML", conda_locks.read, ("pixi.lock",), conda_locks.is_lock),
    Format(Declaration, "YAML", conda_environment.read, YAML, CONDA_EXPORT.match),
    Format(Listing, "JSON", lock_files.read_json, (".json",), JSON.match),
    Format(Listing, "TOML", lock_files.read_toml, lock_files.TOML, TOML_PACKAGES.search),
    Format(Declaration, "", _read_requirements, is_text=lambda text: True),
)
"""The first that fits a file is its format."""


def classified(file: PackageFile) -> Declaration | Listing:
    each = next(each for each in FORMATS if each.fits(file))
    return each.kind(file.name, file.path, file.text, file.chosen, each.syntax, each.read)


def source_of(file: PackageFile) -> Declaration | Listing:
    """The file as what it is. Raises UserError for a file that is not read, with what to give
    instead."""
    if why := unread.by_name(file.path.name) or unread.by_text(file.path, file.text):
        raise UserError(f"{file.name} is not read: {why}")
    return classified(file)
