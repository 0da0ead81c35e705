"""What a file declares, in sections: what is always installed, extras and groups.

A section may include others; a section that several include is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from harness.check.requirement_lines import Line


@dataclass(frozen=True)
class Part:
    """A reference to another section, whose lines belong here."""

    where: str


@dataclass
class Section:
    """Requirements that are installed together."""

    name: str
    """Of the extra or the group; empty for what is always installed."""
    where: str
    """``project.optional-dependencies.train``; no two sections have the same."""
    lines: list[Line | Part] = field(default_factory=list)


@dataclass
class Content:
    """What a file declares for all of its users."""

    sections: dict[str, Section] = field(default_factory=dict)
    """By where they are."""
    python: str = ""
    """The Pythons that it is for, ``>=3.10``; empty if it does not say."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of how it was read."""
    day: str = ""
    """The day (ISO) until whose end releases count; empty for today."""
    unfollowed: str = ""
    """Why nobody knows which release it takes of a range; empty for the newest."""
    indices: dict[str, str] = field(default_factory=dict)
    """The addresses of the indices that it names, by name."""
    is_plain: bool = False
    """Whether it is a requirements file, which may be empty, and which ``pip freeze`` may write."""

    def add(self, name: str, where: str, lines: Iterable[Line | Part] = ()) -> None:
        self.sections.setdefault(where, Section(name, where)).lines.extend(lines)

    def parts(self, *kinds: str) -> dict[str, list[Part]]:
        """The sections of some kinds, such as ``dependency-groups``, by key of their names."""
        by_key: dict[str, list[Part]] = {}
        for section in self.sections.values():
            if section.where.startswith(tuple(f"{kind}." for kind in kinds)):
                by_key.setdefault(key(section.name), []).append(Part(section.where))
        return by_key

    def names(self) -> Sequence[str]:
        """The extras and groups."""
        return sorted({section.name for section in self.sections.values() if section.name})

    def lines(self, chosen: Iterable[str]) -> Iterator[tuple[str, Line]]:
        """Where each line is, of what is always installed and of the chosen extras and groups. A
        section counts once."""
        keys, seen = {"", *map(key, chosen)}, set[Part]()
        selection = [s.where for s in self.sections.values() if key(s.name) in keys]
        start: list[Line | Part] = [*map(Part, selection)]
        stack = [("", iter(start))]
        while stack:
            where, lines = stack[-1]
            line = next(lines, None)
            if line is None:
                stack.pop()
            elif isinstance(line, Line):
                yield where, line
            elif line not in seen:
                seen.add(line)
                stack.append((line.where, iter(self.sections[line.where].lines)))


def key(name: str) -> str:
    """The form in which names of extras and groups are compared."""
    return canonicalize_name(name) if name else ""
