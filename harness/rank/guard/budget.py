"""Decides which step is checked next, so that all checks together cost no more than the budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FIRST_CHECKS = 5
"""Steps 1 to 5 are checked, whatever they cost: the budget pays that back later."""

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
