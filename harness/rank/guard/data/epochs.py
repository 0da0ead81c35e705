"""An epoch of a loader, as this rank reads it.

A sampler that splits gives each row to one rank, once in an epoch. That a sampler splits is seen
from how many rows it gives to a rank, and from rows that never come again. The numbers of the rows
say it then, also of steps that are not checked.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from ...training.live_objects import attribute
from ..posting.posts import Alarm

FIRST_BATCHES = 4
"""The batches by which the order of two epochs is compared: shorter epochs are not. Whether so few
rows say anything, ``LEAST_ORDERS`` decides."""
AHEAD = 16
"""Batches that a loop may have read and not trained on: a test reads two ahead."""
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


class Epoch:
    """A pass of an iterator over its rows."""

    def __init__(self, number: int, length: int | None, told: list[Any]) -> None:
        self.number, self.length, self.told = number, length, told
        self.batches = self.rows = self.largest = self.backwards = 0
        self.first: list[int] = []
        self.last_row = -1
        self.is_sorted = True
        """Whether its first rows are those of the dataset, in its order."""
        self.has_begun = False
        """Whether its first batches trained."""
        self.steppers: set[int] = set()
        """The numbers of the optimizers that have stepped in it."""
        self.part: EpochRows | None = None
        """The rows, if ranks split the dataset."""
        self.training = 0
        """Which of the epochs that train it is; 0 if it does not."""
        self.goes_on = False
        """Whether it may be the rest of an epoch that began before a save."""
        self.is_stuck = False
        """Whether nobody has told a sampler of it."""
        self.seen: set[int] = set()
        self.sampled: list[int] = []
        """Those of its rows of which rank 0 learns."""
        self._ends: deque[tuple[int, int, int]] = deque(maxlen=AHEAD)
        """Of the last batches the number, and the counts of all rows and of sampled ones."""

    @property
    def is_over(self) -> bool:
        """Whether all its batches were read: an iterator may go on with another epoch."""
        return self.length is not None and self.batches >= self.length

    def add(self, rows: list[int], batch: int, sampled: set[int]) -> None:
        """Count a batch."""
        self.batches += 1
        self.rows += len(rows)
        self.largest = max(self.largest, len(rows))
        self.sampled += sampled & set(rows)
        if self.part is not None and not self.is_over:
            self.part.add(rows)
        self._ends.append((self.batches, self.rows, len(self.sampled)))
        if len(self.first) < FIRST_BATCHES:
            self.first.append(batch)
            self.is_sorted = self.is_sorted and sorted([self.last_row, *rows])[1:] == rows
            self.last_row = rows[-1]

    def trained_rows(self) -> tuple[int, list[int]] | None:
        """How many rows have trained, and the sampled ones; None if the epoch is not in its middle.
        A loop may read batches ahead."""
        trained = min(self.batches, self.backwards)
        if self.length is None or not 0 < trained < self.length:
            return None
        ends = {batch: (rows, sampled) for batch, rows, sampled in self._ends}
        rows, sampled = ends.get(trained, (0, 0))
        return (rows, self.sampled[:sampled]) if rows else None


LEAST_MISSING = 0.05
"""The part of the epochs that is missing: less may be the rest of an epoch, which is dropped, such
as 0.3 % of three epochs. transformers 4.50.3 trains 8 of 10 epochs (``trainer_epochs_short``)."""


def missing_epochs(settings: Any, state: Any) -> Iterator[Alarm]:
    """An alarm if a Trainer with these settings that has made all steps that it planned trained
    fewer epochs than it was asked for. A callback may stop it before, and a number of steps may be
    asked for instead."""
    values = [attribute(settings, name) for name in ("num_train_epochs", "max_steps")]
    values += [attribute(state, name) for name in ("epoch", "global_step", "max_steps")]
    if not all(type(one) in (int, float) for one in values):
        return
    asked, most_steps, epoch, step, planned = values
    steps_of_epoch = step / epoch if epoch else 0.0
    missing = asked - epoch
    is_planned = most_steps <= 0 and step == planned > 0
    if is_planned and missing > LEAST_MISSING * asked and missing * steps_of_epoch > 1:
        text = (
            f"the Trainer was asked for {asked:.4g} epochs, and ends by itself after {epoch:.4g}: "
            f"it planned {planned:.0f} steps, which are fewer"
        )
        yield Alarm("samples", "short", text, size=missing)


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
