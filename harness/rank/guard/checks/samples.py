"""In a step no two ranks of a data-parallel training read the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from . import together
from .views import Alarm, Memory, View


def samples(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step no two ranks of a data-parallel training read the same rows."""
    layouts = {one.columns.digest: one.columns for one in map(together.layout, views)}
    groups = {
        columns.groups[group]
        for columns in layouts.values()
        for group, is_shared in zip(columns.group, columns.fields["same_rows"])
        if len(columns.groups[group]) > 1 and not is_shared
    }
    by_loader: dict[int, dict[int, list[int]]] = {}
    for view in views:
        for loader, rows in view.post.rows:
            by_loader.setdefault(loader, {}).setdefault(view.rank, []).extend(rows)
    for readers, group in product(by_loader.values(), sorted(groups)):
        sets = {rank: set(readers[rank]) for rank in group if _are_rows(readers.get(rank, ()))}
        if len(sets) < 2:
            continue
        rows_once = set().union(*sets.values())
        repeated = sum(map(len, sets.values())) - len(rows_once)
        if repeated >= 0.5 * max(map(len, sets.values())):
            readers_of = Counter(row for rows in sets.values() for row in rows)
            ranks = [
                rank
                for rank, rows in sorted(sets.items())
                if any(readers_of[row] > 1 for row in rows)
            ]
            text = (
                f"{repeated} of the {len(rows_once)} rows of this step were read by more than "
                "one rank"
            )
            yield Alarm("samples", "shared", text, ranks, float(repeated))


def _are_rows(rows: Sequence[int]) -> bool:
    """Whether these are rows of data: random ones, or padding, are equal among themselves."""
    return len(rows) > 0 and not (len(rows) >= 4 and len(set(rows)) < 0.5 * len(rows))
