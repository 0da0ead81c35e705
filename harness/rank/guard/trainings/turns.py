"""Which step of a training is checked next."""

from __future__ import annotations

MOST_WAITS = 16
"""Steps of other optimizers for which a check waits: one that nobody steps would stay armed."""
MOST_NAPS = 3
"""Checks given up so, after which an optimizer is not checked again."""


class Turn:
    """The checks of one optimizer: which one it is, and when the next one is."""

    def __init__(self) -> None:
        self.check = 0
        """The number of checks that have begun."""
        self.next_step: int | None = 1
        """The next checked step; None until rank 0 has chosen it."""
        self._waits = self._naps = 0

    def begin(self) -> None:
        """Note that a check begins."""
        self.check += 1
        self._waits = 0

    def wait(self) -> bool:
        """Note that another optimizer stepped during the check; returns whether it is given up."""
        self._waits += 1
        if self._waits == MOST_WAITS:
            self._naps += 1
            self.next_step = None
        return self._waits == MOST_WAITS

    @property
    def has_waited(self) -> bool:
        """Whether another optimizer stepped during the check."""
        return bool(self._waits)

    def leave_out(self) -> None:
        """Check this optimizer no more."""
        self._naps, self.next_step = MOST_NAPS, None

    @property
    def is_left_out(self) -> bool:
        """Whether it steps so seldom that it is not checked."""
        return self._naps == MOST_NAPS

    def end_step(self, steps: int, is_checked: bool) -> None:
        """Note that so many steps were taken, the last of them checked or not."""
        if self._waits == MOST_WAITS and not self.is_left_out:
            self.next_step, self._waits = steps + 1, 0
        if self.next_step == steps and not is_checked:
            self.next_step = steps + 1  # no backward was before it: a state is made by a step
