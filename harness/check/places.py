"""Where a file names a package: what an annotation or a result of SARIF points at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass
class Places:
    """The places in the files of an environment. Each file is read once more, for its lines."""

    environment: Environment
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def of_package(self, names: Iterable[str]) -> Place | None:
        """The line that names one of these packages, otherwise the first file that was read; None
        for an interpreter and for standard input."""
        names = list(names)
        where = self.environment.lines
        parts = next((where[name] for name in names if name in where), "").rpartition(", ")
        file = parts[0] or self.environment.file
        if line := _number(parts[2]):
            return _place(file, line)
        return _place(file, self._line(file, names))

    def of_note(self, note: str) -> Place | None:
        """The line that a note begins with: ``requirements.txt, line 3: ...``."""
        place = re.match(r"(.+), line (\d+): ", note)
        return _place(place[1], int(place[2])) if place else _place(self.environment.file)

    def _line(self, file: str, names: Iterable[str]) -> int:
        if file in ("", *INPUTS.values()):
            return 0
        for name in names:
            if (file, name) not in self._numbers:
                self._numbers[file, name] = line_of(name, self._lines(file))
            if self._numbers[file, name]:
                return self._numbers[file, name]
        return 0

    def _lines(self, file: str) -> list[str]:
        if file not in self._texts:
            try:
                self._texts[file] = read_file(Path(file)).text.splitlines()
            except UserError:  # it has been deleted since, or it is not one file
                self._texts[file] = []
        return self._texts[file]


def _number(position: str) -> int:
    """The number of ``line 3``; 0 of ``project.dependencies``."""
    word, _, number = position.partition(" ")
    return int(number) if word == "line" and number.isdecimal() else 0


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
