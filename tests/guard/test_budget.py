"""The next checked step: all checks together cost no more than the budget."""

from __future__ import annotations

import pytest

from harness.rank.guard.posting.budget import FIRST_CHECKS, Cost, steps_until_next


def test_checks_of_a_long_training_cost_the_budget() -> None:
    """10 ms a check and 20 ms a step: one check in 50 steps costs one percent."""
    step, check, budget = 0.02, 0.01, 0.01
    spent, elapsed, checks, steps, last_gap = 0.0, 0.0, 0, 0, 0
    while steps < 20_000:
        spent, checks = spent + check, checks + 1
        elapsed += check
        cost = Cost(checks, spent, 0.0, spent / checks, step, elapsed)
        ahead = 1 if checks < FIRST_CHECKS else steps_until_next([cost], budget)
        steps, elapsed, last_gap = steps + ahead, elapsed + ahead * step, ahead
    assert spent / elapsed <= budget
    assert spent / elapsed > 0.9 * budget
    assert last_gap == pytest.approx(50, abs=1)


def test_first_checks_are_paid_back() -> None:
    cost = Cost(5, 0.5, 0.0, 0.1, 0.1, 1.0)  # half of the first second

    assert steps_until_next([cost], 0.01) == pytest.approx((0.6 / 0.01 - 1.0) / 0.1, abs=1)


DEAR, FREE = Cost(5, 0.5, 0, 0.1, 0.1, 1e3), Cost(5, 0.0, 0.0, 0.0, 0.1, 60.0)


@pytest.mark.parametrize(
    ("costs", "settings", "steps"),
    [
        ([DEAR], {}, 100),
        ([Cost(5, 0.05, 0, 0.01, 0.1, 1e3), DEAR], {}, 100),  # the slowest rank counts
        ([Cost(5, 0.0, 0.5, 0.0, 0.1, 1e3)], {}, 100),  # and the time of the thread
        ([FREE], {"every": 7, "passed": 2}, 5),  # from the last check, not from its judging
        ([FREE], {"every": 7, "passed": 6}, 3),  # ranks have no time for 1
        ([Cost(5, 0, 0, 0, 1.0, 9.0)], {"every": 1}, 3),  # they have to learn of the step
        ([Cost(5, 0, 0, 0, 0.001, 9.0)], {"every": 1}, 80),
    ],
)
def test_steps_until_the_next_check(
    costs: list[Cost], settings: dict[str, int], steps: int
) -> None:
    assert steps_until_next(costs, 0.01, **settings) == steps


@pytest.mark.parametrize("costs", [[], [Cost()], [Cost(5, 0, 0, 0, 0, 0)]])
def test_unknown_costs_give_a_step(costs: list[Cost]) -> None:
    assert steps_until_next(costs, 0.01) >= 3
