"""An epoch of a loader, as this rank reads it."""

from __future__ import annotations

from .samplers import EpochSampler
from .splits import EpochRows

FIRST_BATCHES = 4
"""The batches by which the order of two epochs is compared."""


class Epoch:
    """A pass of an iterator over its rows."""

    def __init__(self, number: int, length: int | None, samplers: list[EpochSampler]) -> None:
        self.number, self.length, self.samplers = number, length, samplers
        self.batches = self.rows = self.largest = 0
        self.first: list[int] = []
        self.last_row = -1
        self.is_sorted = True
        """Whether its first rows are those of the dataset, in its order."""
        self.has_begun = False
        """Whether its first batches trained."""
        self.part: EpochRows | None = None
        """The rows, if ranks split the dataset."""
        self.training = 0
        """Which of the epochs that train it is; 0 if it does not."""
        self.stuck = ""
        """The sampler that was not told of it."""
        self.seen: set[int] = set()
        self.sampled: list[int] = []
        """Those of its rows of which rank 0 learns."""

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
        if len(self.first) < FIRST_BATCHES:
            self.first.append(batch)
            self.is_sorted = self.is_sorted and sorted([self.last_row, *rows])[1:] == rows
            self.last_row = rows[-1]

    def not_told(self, before: Epoch) -> str:
        """The name of a sampler that nobody has told of this epoch after the one before."""
        told = {sampler.told for sampler in before.samplers}
        return next((one.name for one in self.samplers if one.told in told), "")
