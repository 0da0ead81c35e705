"""Streams that the workers of a loader do not split: each of them reads all rows."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ..posting.posts import Alarm

ROUNDS = 3
"""Batches of each worker that are compared, as a rule: the first one may be alike on purpose. No
case set this number."""
MOST_WORKERS = 16
"""Workers of a loader that are compared: of more, the first rounds take too many batches."""
MOST_ITERATORS = 8
"""Iterators of a process that are looked at: a limit of time."""
LEAST_ROWS = 2
"""Different rows of a batch: padding, or rows that are made up, are equal among themselves, as in a
test of a stream of ones."""


class Rounds:
    """The first batches of each worker of an iterator."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self._rounds = rounds
        self._batches: weakref.WeakKeyDictionary[Any, list[tuple[int, ...]]] = (
            weakref.WeakKeyDictionary()
        )
        self._iterators = 0

    def waits(self, iterator: Any) -> bool:
        """Whether the rows of the next batch are to be compared: a loader takes a batch from one
        worker after the other, if nothing says otherwise."""
        workers = getattr(iterator, "_num_workers", 0)
        if not 1 < workers <= MOST_WORKERS or getattr(iterator, "_in_order", True) is False:
            return False
        is_new = iterator not in self._batches
        if is_new and self._iterators == MOST_ITERATORS:
            return False
        return is_new or len(self._batches[iterator]) < self._rounds * workers

    def read(self, iterator: Any, rows: Sequence[int]) -> Alarm | None:
        """Note the rows of a batch, and compare the workers after the last one that counts."""
        self._iterators += iterator not in self._batches
        batches = self._batches.setdefault(iterator, [])
        batches.append(tuple(rows))
        workers = iterator._num_workers
        if len(batches) < self._rounds * workers:
            return None
        rounds = [set(batches[at : at + workers]) for at in range(0, len(batches), workers)]
        is_alike = all(len(batches_of_round) == 1 for batches_of_round in rounds)
        different = {batch for batches_of_round in rounds for batch in batches_of_round}
        if not is_alike or len(different) < self._rounds:
            return None
        if len({*rows}) < min(LEAST_ROWS, len(rows)):
            return None
        text = (
            f"each of the {workers} workers of a loader reads the same rows: the stream is not "
            "split between them (get_worker_info?)"
        )
        return Alarm("samples", "unsplit", text)
