"""How many backwards the steps of a training have, and how many batches are read for them."""

from __future__ import annotations


class BackwardCounts:
    """Of one training: those of its first step and of its last one."""

    def __init__(self, backwards: int) -> None:
        """``backwards`` ran in this process before, for other trainings."""
        self.first = self.last = 0
        self.batches = 0
        """The batches that were read for the last step."""
        self.is_whole = False
        """Whether the last step had as many backwards as the first, and several."""
        self._total = backwards

    def are_of_a_step(self, backwards: int) -> bool:
        """Whether there were enough for a step, now that ``backwards`` ran in all."""
        return 0 < self.first <= backwards - self._total

    def none_since_step(self, backwards: int) -> bool:
        """Whether none ran since the last step, now that ``backwards`` ran in all."""
        return backwards == self._total

    def skip(self, backwards: int) -> None:
        """Note that those before belong to no step."""
        self._total = backwards

    def end_step(self, backwards: int, batches: int, has_skipped: bool) -> None:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read. ``has_skipped`` says that a step before it was skipped."""
        self.last, self.batches = backwards - self._total, batches
        self._total = backwards
        if not self.first and not has_skipped:
            self.first = self.last
        self.is_whole = self.last == self.first > 1
