"""How many backwards the steps of a training have, and how many batches are read for them."""

from __future__ import annotations

from .posts import LocalAlarm
from .sentences import number_of

MANY = 4
"""Steps one after the other with fewer backwards, after which that is told."""


class BackwardCounts:
    """Of one training: those of its first step and of its last one."""

    def __init__(self, backwards: int) -> None:
        """``backwards`` ran in this process before, for other trainings."""
        self.first = self.last = 0
        self.batches = 0
        """The batches that were read for the last step."""
        self.is_whole = False
        """Whether the last step had as many backwards as the first, and several."""
        self._total, self._first_batches, self._short_steps = backwards, 0, 0

    def are_of_a_step(self, backwards: int) -> bool:
        """Whether there were enough for a step, now that ``backwards`` ran in all."""
        return 0 < self.first <= backwards - self._total

    def none_since_step(self, backwards: int) -> bool:
        """Whether none ran since the last step, now that ``backwards`` ran in all."""
        return backwards == self._total

    def skip(self, backwards: int) -> None:
        """Note that those before belong to no step."""
        self._total = backwards

    def end_step(self, backwards: int, batches: int, has_skipped: bool) -> LocalAlarm | None:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read; returns the alarm that steps have fewer now. ``has_skipped`` says that a
        step before it was skipped."""
        self.last, self.batches = backwards - self._total, batches
        self._total = backwards
        if not self.first and not has_skipped:
            self.first, self._first_batches = self.last, batches
        self.is_whole = self.last == self.first > 1
        # Several losses of one batch may have backwards of their own, and some of them may end.
        is_short = 0 < self.last < self.first / 2
        is_short = is_short and (not self._first_batches or batches < self._first_batches / 2)
        self._short_steps = self._short_steps + 1 if is_short else 0
        if self._short_steps != MANY:
            return None
        last = number_of(self.last, "micro-batch", "es")
        text = f"a step has {last} now, and had {self.first} at first"
        return LocalAlarm("accumulation", "fewer", text, float(self.last))
