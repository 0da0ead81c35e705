"""Crosses settings so that every two values of different factors meet, in few combinations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Pair = tuple[int, int, int, int]
"""A factor, its value, another factor, its value; each by number."""


def crossed(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Combinations of one value (by number) of each factor; ``sizes`` are their numbers of values.

    The first combination has every factor's first value. The others are chosen greedily: each
    covers many pairs that no earlier one has, so a run that is cut short has the most of them.
    """
    missing = {
        (f, a, g, b)
        for f, g in combinations(range(len(sizes)), 2)
        for a in range(sizes[f])
        for b in range(sizes[g])
    }
    rows = [(0,) * len(sizes)]
    missing -= _pairs(rows[0])
    while missing:
        rows.append(_next(sizes, missing))
        missing -= _pairs(rows[-1])
    if len(sizes) == 1:
        rows = [(value,) for value in range(sizes[0])]
    return rows


def _pairs(row: Sequence[int]) -> set[Pair]:
    return {(f, row[f], g, row[g]) for f, g in combinations(range(len(row)), 2)}


def _next(sizes: Sequence[int], missing: set[Pair]) -> tuple[int, ...]:
    """A combination around the first missing pair, the other factors filled in one by one."""
    f, a, g, b = min(missing)
    row = {f: a, g: b}
    for factor in range(len(sizes)):
        if factor not in row:
            gains = [_gain(row, factor, value, missing) for value in range(sizes[factor])]
            row[factor] = gains.index(max(gains))
    return tuple(row[factor] for factor in range(len(sizes)))


def _gain(row: dict[int, int], factor: int, value: int, missing: set[Pair]) -> int:
    """How many missing pairs a value forms with the chosen ones."""
    ordered = (
        (factor, value, other, at) if factor < other else (other, at, factor, value)
        for other, at in row.items()
    )
    return sum(pair in missing for pair in ordered)
