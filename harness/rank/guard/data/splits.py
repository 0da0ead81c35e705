"""The rows that this rank gets in an epoch of a dataset that the ranks split among them.

A sampler that splits gives each row to one rank, once in an epoch. That a sampler splits is seen
from how many rows it gives to a rank, and from rows that never come again. The numbers of the rows
say it then, also of steps that are not checked.
"""

from __future__ import annotations

import heapq
import math
import os
from typing import Any

MOST_NUMBERS = 1 << 16
"""Rows of an epoch that are remembered: so many different ones on each of two ranks show a split of
600 million rows."""
SAMPLE = 128
"""Rows of an epoch that are compared with those of other ranks. Two ranks that share half of 10,000
rows have more than 16 of them in common."""
HASHES = 1 << 32
STEP_SAMPLE = 16
"""Rows of a step whose values are compared: they vary in the right loop
``rows.repeated_augmentation``."""
MIX = 2654435761
"""An odd number: all ranks choose rows by the same hash, so that their samples can meet."""


class EpochRows:
    """The rows of an epoch, without its last batch: that may be filled up with rows of others."""

    def __init__(self, dataset_rows: int) -> None:
        self.dataset_rows = dataset_rows
        self.sample: set[int] = set()
        self.repeats = False
        """Whether a row came twice."""
        self._numbers: set[int] = set()
        self._limit = HASHES

    def add(self, rows: list[int]) -> None:
        """Note a batch."""
        if len(self._numbers) >= MOST_NUMBERS:
            return
        expected = len(self._numbers) + len(rows)
        self._numbers.update(rows)
        self.repeats = self.repeats or len(self._numbers) < expected
        self.sample.update(row for row in rows if _hash(row) < self._limit)
        while len(self.sample) > SAMPLE:
            self._limit //= 2
            self.sample = {row for row in self.sample if _hash(row) < self._limit}

    @property
    def surprise(self) -> float:
        """The surprisal, in nats, of the birthday problem: that no row came twice, if each was
        drawn from all of them."""
        count, total = len(self._numbers), self.dataset_rows
        if count >= total:
            return 0.0
        orders = math.lgamma(total + 1) - math.lgamma(total - count + 1)
        return count * math.log(total) - orders


def sample_of_step(values: dict[int, int]) -> list[list[int]]:
    """Some rows of a step, each with the number for its values."""
    rows = heapq.nsmallest(STEP_SAMPLE, values, key=_hash)
    return [[row, values[row]] for row in rows]


def _hash(row: int) -> int:
    return row * MIX % HASHES


def splits(iterator: Any, dataset: Any) -> int:
    """The rows of the dataset, if an epoch of this rank has as many batches as if the ranks, or
    groups of them, split it; otherwise 0."""
    try:
        sampler = iterator._index_sampler
        batches, size, rows = len(sampler), int(sampler.batch_size), len(dataset)
    except Exception:  # a stranger's code
        return 0
    ranks = int(os.environ.get("WORLD_SIZE") or 1)
    if size < 1 or batches >= rows // size:
        return 0
    is_split = any(
        rows // (parts * size) <= batches <= -(-rows // (parts * size))
        for parts in range(2, ranks + 1)
        if ranks % parts == 0
    )
    return rows if is_split else 0
