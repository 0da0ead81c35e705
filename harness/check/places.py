"""Where a file names a package: what an annotation or a result of SARIF points at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.check.environment import Environment
from harness.check.source import INPUTS, read_file
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
    """The places in the files of an environment. Each file is read once more, for its lines."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._lines = cache(_lines)
        self._line = cache(lambda file, name: line_of(name, self._lines(file)))

    def of_package(self, names: Iterable[str]) -> Place | None:
        """The line that names one of these packages, otherwise the first file that was read; None
        for an interpreter and for standard input."""
        names, where = list(names), self.environment.lines
        place = next((where[name] for name in names if name in where), "")
        file, _, position = place.rpartition(", ")
        file = file or self.environment.file
        if number := re.fullmatch(r"line (\d+)", position):  # not project.dependencies
            return _place(file, int(number[1]))
        return _place(file, next(filter(None, (self._line(file, name) for name in names)), 0))

    def of_note(self, note: str) -> Place | None:
        """The line that a note begins with, ``requirements.txt, line 3: ...``, otherwise the first
        file that was read."""
        place = re.match(r"(.+), line (\d+): ", note)
        return _place(place[1], int(place[2])) if place else _place(self.environment.file)


def _lines(file: str) -> list[str]:
    """The lines of a file; none if it has been deleted since, or if it is not one file."""
    try:
        return [] if file in ("", *INPUTS.values()) else read_file(Path(file)).text.splitlines()
    except UserError:
        return []


def _place(file: str, line: int = 0) -> Place | None:
    if file in ("", *INPUTS.values()):
        return None
    path = Path(file)
    return Place(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path, line)


def line_of(package: str, lines: Iterable[str]) -> int:
    """The number of the line that names a package in a lock file, a project file or a list of
    conda; 0 if there is none.

    A lock file names a package in its own entry and in the entries of those that need it: its own
    comes first. A comment does not count.
    """
    name = "[-_.]+".join(map(re.escape, canonicalize_name(package).split("-")))
    patterns = (
        rf"""\s*"?name"?\s*[:=]\s*["']{name}["']""",
        rf"""\s*(?:-\s*)?["']?(?:[\w-]+::)?{name}(?![\w.-]*\w)""",
        rf"""[^#]*["'\[,\s]{name}(?![\w.-]*\w)""",
    )
    part = max(canonicalize_name(package).split("-"), key=len)
    numbered = [(number, line) for number, line in enumerate(lines, 1) if part in line.lower()]
    for pattern in patterns:
        entry = re.compile(pattern, re.IGNORECASE)
        for number, line in numbered:
            if entry.match(line):
                return number
    return 0
