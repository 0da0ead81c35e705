"""The picture of a bug, as data: what a scenario shows of the records of its trials.

A scenario's ``picture(trials)`` yields one or a few of these; the site draws them. ``caption`` is
one sentence for readers, also for those who cannot see the picture. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Lines:
    """Values along an axis, a line for each variant or name."""

    title: str
    caption: str
    points: Sequence[tuple[str, float, float | None]]
    """The line's name, x, y. Where y is None, infinite or NaN there is a gap."""
    x: str = "step"
    y: str = ""
    """What the axes count, with the unit."""
    log: bool = False
    """Whether y is drawn by its order of magnitude; 0 is drawn at the foot."""
    stairs: bool = False
    """Whether a value holds until the next."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Levels of y that mean something, by their names."""
    marks: Sequence[tuple[str, float]] = ()
    """Events along x: what happened, and where."""


@dataclass(frozen=True)
class Bars:
    """One value for each name, the variants beside each other."""

    title: str
    caption: str
    values: Sequence[tuple[str, str, float]]
    """The variant, the name, the value."""
    x: str = ""
    """What the values count, with the unit."""
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A table of fields, coloured by a number or by a word, a panel for each variant."""

    title: str
    caption: str
    fields: Sequence[tuple[str, str | int, str | int, float | str | None]]
    """The panel, the column, the row, the value."""
    x: str = ""
    y: str = ""
    value: str = ""
    """What the columns, the rows and the values are."""
    wrong: Sequence[str] = ()
    """The words that should not be there: they stand out."""


Picture = Lines | Bars | Grid

Pictures = Callable[[Mapping[str, Any]], Iterator[Picture]]
"""A scenario's ``picture``: it gets the records by variant, ``spec.Trials``."""


def lines(
    title: str,
    caption: str,
    value: Callable[[Any], float | None],
    kind: str = "step",
    **options: Any,
) -> Pictures:
    """A picture of one value of each record of a kind on rank 0, a line for each variant.
    ``options`` are further fields of Lines."""

    def picture(trials: Mapping[str, Any]) -> Iterator[Picture]:
        yield Lines(title, caption, by_step(trials, value, kind), **options)

    return picture


def bars(
    title: str,
    caption: str,
    values: Callable[[Any], Iterable[tuple[str, float]]],
    x: str = "",
    limits: Mapping[str, float] = MappingProxyType({}),
) -> Pictures:
    """A picture of some values of each variant: ``values`` gets the records of a variant and
    returns pairs of a name and a value."""

    def picture(trials: Mapping[str, Any]) -> Iterator[Picture]:
        rows = [(v, *pair) for v, records in trials.items() for pair in values(records)]
        yield Bars(title, caption, rows, x, dict(limits))

    return picture


def grid(
    title: str,
    caption: str,
    fields: Callable[[Any], Iterable[tuple[str | int, str | int, float | str | None]]],
    **options: Any,
) -> Pictures:
    """A picture of some fields, a panel for each variant: ``fields`` gets the records of a variant
    and returns column, row and value of each field. ``options`` are further fields of Grid."""

    def picture(trials: Mapping[str, Any]) -> Iterator[Picture]:
        cells = [(v, *cell) for v, records in trials.items() for cell in fields(records)]
        yield Grid(title, caption, cells, **options)

    return picture


def by_step(
    trials: Mapping[str, Any], of: Callable[[Any], float | None], kind: str = "step"
) -> list[tuple[str, float, float | None]]:
    """The points of ``Lines``: what ``of`` returns for each record of a kind on rank 0.

    ``trials`` are ``spec.Trials``.
    """
    return [
        (variant, record["step"], of(record))
        for variant, records in trials.items()
        for record in records.of(kind, 0)
    ]
