"""Where a file names a package: what an annotation or a result of SARIF points at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.check.environment import Environment
from harness.check.source import INPUTS, read_file
from harness.check.synonyms import ELSEWHERE
from harness.system.errors import UserError


@dataclass(frozen=True)
class Place:
    """A file, and a line in it."""

    file: Path
    """Relative to the working folder, if it is in there."""
    line: int = 0
    """From 1; 0 if it is not known."""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" if self.line else str(self.file)


class Places:
    """The places in the files of an environment, which are read once more for each package."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._line = cache(_line)

    def of_package(self, names: Iterable[str]) -> Place | None:
        """The line that names one of these packages, otherwise the first file that was read; None
        for an interpreter and for standard input."""
        names, where = list(names), self.environment.lines
        place = next((where[name] for name in names if name in where), "")
        file, _, position = place.rpartition(", ")
        file = file or self.environment.file
        if number := re.fullmatch(r"line (\d+)", position):  # not project.dependencies
            return _place(file, int(number[1]))
        names += [other for other, name in ELSEWHERE.items() if name in names]
        return _place(file, self._line(file, tuple(names), position))

    def of_note(self, note: str) -> Place | None:
        """The line that a note begins with, ``requirements.txt, line 3: ...``, otherwise the first
        file that was read."""
        place = re.match(r"(.+), line (\d+): ", note)
        return _place(place[1], int(place[2])) if place else _place(self.environment.file)


def _line(file: str, names: Sequence[str], position: str) -> int:
    """The line of a package; 0 if the file has been deleted since, or if it is not one file."""
    try:
        return line_of(names, read_file(Path(file)).text.splitlines(), position)
    except UserError:
        return 0


def _place(file: str, line: int = 0) -> Place | None:
    if file in ("", *INPUTS.values()):
        return None
    path = Path(file)
    return Place(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path, line)


PATTERNS = (
    r"""\s*(?:-\s*\{?\s*)?"?name"?\s*[:=]\s*["']?NAME(?![\w.-]*\w)""",
    r"""\s*(?:-\s*)?["']?(?:[\w./:-]+::)?NAME(?![\w.-]*\w)""",
    r"""[^#]*["'\[,\s]NAME(?![\w.-]*\w)""",
)
"""A lock file names a package in its own entry and in the entries of those that need it: its own
comes first. A comment does not count."""


def line_of(names: Sequence[str], lines: Iterable[str], position: str = "") -> int:
    """The number of the line that names one of these packages in a lock file, a project file or a
    list of conda; 0 if there is none. ``position`` is the table or the key that names it,
    ``project.dependencies``; the rest of the file counts if nothing there does."""
    numbered = list(enumerate(lines, 1))
    sections = [list(_lines_at(position, numbered)), numbered] if position else [numbered]
    for section, pattern, name in product(sections, PATTERNS, map(canonicalize_name, names)):
        words = name.split("-")
        entry = re.compile(pattern.replace("NAME", "[-_.]+".join(words)), re.IGNORECASE)
        part = max(words, key=len)
        for number, line in section:
            if part in line.lower() and entry.match(line):
                return number
    return 0


def _lines_at(position: str, numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines of a table or a key, ``dependencies`` of ``[project]``."""
    # An extra of Poetry only names packages; their releases are among the dependencies.
    position = re.sub(r"^(tool\.poetry)\.extras\..*", r"\1.dependencies", position)
    table = key = ""
    for number, line in numbered:
        if head := re.match(r"\[([^\[\]]+)\]", line):
            table, key = head[1], ""
        elif head := re.match(r"""["']?(\w[\w.-]*)["']?\s*[:=]""", line):
            key = head[1]
        if f".{position}." in f".{table}.{key}.":
            yield number, line
