"""What a project's file declares, in sections: what is always installed, extras and groups.

A section may include others; a section that several include is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from packaging.utils import canonicalize_name


class Option(str):
    """A line with an option of pip, such as ``-r base.txt``, that a project's file stands for."""

    __slots__ = ()


class Constraint(str):
    """A line that only says which version a package has if something needs it."""

    __slots__ = ()


class Override(str):
    """A line that replaces what every package needs of a package. If no such line holds here, the
    package is left out: something else than this file installs it."""

    __slots__ = ()


class Part(str):
    """A reference to another section, whose lines belong here."""

    __slots__ = ()


@dataclass
class Section:
    """Requirements that are installed together."""

    name: str
    """Of the extra or the group; empty for what is always installed."""
    where: str
    """``project.optional-dependencies.train``; no two sections have the same."""
    lines: list[str] = field(default_factory=list)


@dataclass
class Content:
    """What a file declares for all of its users."""

    sections: dict[str, Section] = field(default_factory=dict)
    """By where they are."""
    python: str = ""
    """The Pythons that it is for, ``>=3.10``; empty if it does not say."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of how it was read."""
    unknown: dict[str, str] = field(default_factory=dict)
    """The packages whose versions could not be read, and why."""

    def add(self, name: str, where: str, lines: Iterable[str]) -> None:
        self.sections.setdefault(where, Section(name, where)).lines.extend(lines)

    def parts(self, *kinds: str) -> dict[str, list[Part]]:
        """The sections of some kinds, such as ``dependency-groups``, by key of their names."""
        by_key: dict[str, list[Part]] = {}
        for section in self.sections.values():
            if section.where.startswith(tuple(f"{kind}." for kind in kinds)):
                by_key.setdefault(key(section.name), []).append(Part(section.where))
        return by_key

    def refuse_circles(self, kind: str) -> None:
        """Raise ValueError if a section of a kind includes itself."""
        graph = {
            section.where: [line for line in section.lines if isinstance(line, Part)]
            for section in self.sections.values()
            if section.where.startswith(f"{kind}.")
        }
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            raise ValueError(f"{error.args[1][0]} includes itself") from None

    def lines(self, chosen: Iterable[Section]) -> Iterator[tuple[str, str]]:
        """The place and the text of each line in these sections; a section counts once."""
        included_parts: set[str] = set()
        stack = [("", iter([Part(section.where) for section in chosen]))]
        while stack:
            where, lines = stack[-1]
            line = next(lines, None)
            if line is None:
                stack.pop()
            elif not isinstance(line, Part):
                yield where, line
            elif line not in included_parts:
                included_parts.add(line)
                stack.append((line, iter(self.sections[line].lines)))  # type: ignore[arg-type]


def key(name: str) -> str:
    """The form in which names of extras and groups are compared."""
    return canonicalize_name(name) if name else ""


def names(sections: Iterable[Section]) -> Sequence[str]:
    return sorted({section.name for section in sections if section.name})
