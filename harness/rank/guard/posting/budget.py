"""What the checks of a training cost, and which step is checked next, so that all checks together
cost no more than the budget."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

FIRST_CHECKS = 5
"""Steps 1 to 5 are checked, whatever they cost: the budget pays that back later. With hardly any
other check, 60 of 61 bugs of the catalogue are told."""

LEAST_STEPS = 3
"""Ranks learn the next checked step from rank 0, which needs some steps, ..."""
LEAST_SECONDS = 0.08
"""... and at least this time. It holds also for a number of steps that the user names, so the
summary says how many of these steps were not checked."""


@dataclass
class Cost:
    """What the checks of a rank have cost so far, in seconds."""

    checks: int = 0
    spent: float = 0.0
    """In the thread that trains."""
    thread: float = 0.0
    """In the thread that posts and judges."""
    each: float = 0.0
    """One check, in the thread that trains."""
    step: float = 0.0
    """A step that is not checked: the median of the last ones."""
    elapsed: float = 0.0
    """Since the first step."""

    @property
    def percent(self) -> float:
        """The part of the time that the checks have taken."""
        return 100 * (self.spent + self.thread) / self.elapsed if self.elapsed else 0.0


def steps_until_next(costs: Iterable[Cost], budget: float, every: int = 0, passed: int = 0) -> int:
    """How many steps after the one that runs now the next check is.

    ``budget`` is the part of the time that checks may cost (0 to 1); the slowest rank counts.
    ``every`` replaces it by a number of steps after the last check, which was ``passed`` steps ago.
    """
    with_checks = [cost for cost in costs if cost.checks]
    step = max([1e-4, *(cost.step or cost.elapsed / cost.checks for cost in with_checks)])
    least = max(LEAST_STEPS, int(LEAST_SECONDS / step))
    if every or not with_checks:
        return max(least, every - passed)
    seconds_of_check = max(cost.each + cost.thread / cost.checks for cost in with_checks)
    spent = max(cost.spent + cost.thread for cost in with_checks)
    elapsed = max(cost.elapsed for cost in with_checks)
    affordable = seconds_of_check / (budget * step)
    paid_back = ((spent + seconds_of_check) / budget - elapsed) / step
    return max(least, int(affordable), int(paid_back))


RECENT = 50
"""Steps, and checks, whose durations are kept."""
MOST_EXTRA = 3.0
"""How many times the time in its handlers a check may count for what it adds to a step's duration,
such as work of the device. A step takes up to 15 % longer in one run than in another: without a
limit this noise counted as cost."""


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
        else:  # how much longer was it than the usual ones?
            duration, in_handlers = seconds - self._last, self.spent - self._spent_before
            usual = statistics.median(self._plain) if self._plain else duration
            extra = duration - usual - in_handlers
            self.spent += min(max(0.0, extra), MOST_EXTRA * in_handlers)
        self._last = seconds

    def total(self, checks: int, thread: float) -> Cost:
        """What so many checks have cost so far; ``thread`` are the seconds of the other thread."""
        step = statistics.median(self._plain) if self._plain else 0.0
        spent = max(0.0, self.spent - self.setup)
        elapsed = time.perf_counter() - self._began if self._began else 0.0
        check = statistics.median(self._checks) if self._checks else spent / max(1, checks)
        return Cost(checks, spent, thread, check, step, elapsed)
