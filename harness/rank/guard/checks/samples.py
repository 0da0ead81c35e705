"""In a step no two ranks of a data-parallel training read the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from . import together
from .views import Alarm, Memory, View


def samples(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step no two ranks of a data-parallel training read the same rows."""
    everyone = len(views)
    parallel = all(together.layout(view).columns.most_ranks == everyone for view in views)
    if everyone < 2 or not parallel:
        return
    by_loader: dict[int, dict[int, list[int]]] = {}
    for view in views:
        for loader, rows in view.post.rows:
            by_loader.setdefault(loader, {}).setdefault(view.rank, []).extend(rows)
    for readers in by_loader.values():
        sets = {rank: set(rows) for rank, rows in readers.items() if _are_rows(rows)}
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
