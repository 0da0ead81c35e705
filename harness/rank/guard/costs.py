"""What the checks of a training cost its thread."""

from __future__ import annotations

import statistics
import time
from collections import deque

from .budget import Cost

RECENT = 50
"""Steps, and checks, whose durations are kept."""
MOST_EXTRA = 3.0
"""How many times the time in its handlers a check may count for what it adds to a step's duration,
such as work of the device: the duration of a step also varies by itself."""


class CheckCosts:
    """Seconds in handlers, and durations of steps."""

    def __init__(self) -> None:
        self.setup = 0.0
        """Seconds that it took to find modules and parameters."""
        self.spent = self._spent_before = 0.0
        self._checks: deque[float] = deque(maxlen=RECENT)
        """Seconds that each of the last checks took."""
        self._has_posted = False
        """Whether the handler that runs now ends a check."""
        self._began = 0.0
        self._last = 0.0
        self._plain: deque[float] = deque(maxlen=RECENT)
        """Durations of the last steps that were not checked, in seconds."""

    def begin_check(self) -> None:
        """Note that a check begins."""
        self._spent_before = self.spent

    def end_check(self) -> None:
        """Note that the handler that runs now ends a check."""
        self._has_posted = True

    def spend(self, seconds: float) -> None:
        """Note what a handler cost."""
        self.spent += seconds
        if self._has_posted:
            self._has_posted = False
            self._checks.append(self.spent - self._spent_before)

    def end_step(self, is_checked: bool) -> None:
        """Note that a step has ended."""
        seconds = time.perf_counter()
        if not self._began:
            self._began = seconds
        elif not is_checked:
            self._plain.append(seconds - self._last)
        else:
            self._spend_extra(seconds - self._last)
        self._last = seconds

    def _spend_extra(self, duration: float) -> None:
        """Note how much longer than the usual ones a checked step was."""
        in_handlers = self.spent - self._spent_before
        usual = statistics.median(self._plain) if self._plain else duration
        extra = duration - usual - in_handlers
        self.spent += min(max(0.0, extra), MOST_EXTRA * in_handlers)

    def total(self, checks: int, thread: float) -> Cost:
        """What so many checks have cost so far; ``thread`` are the seconds of the other thread."""
        step = statistics.median(self._plain) if self._plain else 0.0
        spent = max(0.0, self.spent - self.setup)
        elapsed = time.perf_counter() - self._began if self._began else 0.0
        check = statistics.median(self._checks) if self._checks else spent / max(1, checks)
        return Cost(checks, spent, thread, check, step, elapsed)
