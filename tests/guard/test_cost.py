"""A step that is not checked does what it does without guard."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from harness.rank.guard.posting.budget import FIRST_CHECKS
from harness.rank.guard.trainings.training import MOST_WAITS

pytestmark = pytest.mark.launch


def count(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.guard.counting", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_step_that_is_not_checked_has_no_other_operation_and_no_hook() -> None:
    without, with_guard = count(), count("guard")
    first_steps = range(FIRST_CHECKS)

    assert with_guard["checked"] == [1, 2, 3, 4, 5]
    assert with_guard["operations"][FIRST_CHECKS:] == without["operations"][FIRST_CHECKS:]
    assert with_guard["hooks"][FIRST_CHECKS:] == without["hooks"][FIRST_CHECKS:]
    assert all(with_guard["operations"][at] != without["operations"][at] for at in first_steps)
    assert all(with_guard["hooks"][at] > without["hooks"][at] for at in first_steps)
    step, handlers = without["microseconds"], with_guard["handlers_microseconds"]
    extra = with_guard["microseconds"] - step
    print(f"handlers {handlers:.1f} us, {extra:.1f} us more in a step of {step:.0f} us")


VIEWS = ("as_strided", "detach", "view", "slice", "split", "alias", "reshape", "_unsafe_view")
"""Operations that only make another view of a tensor: they start no work on a device."""
MOST_KERNELS, MOST_OPERATIONS = 200, 1400
"""What a check of 300 parameters may add to a step. Asking each one took 609 and 4,354."""
MOST_JUDGING = 600
"""Operations that judge it. Asking each parameter and each update took 3,455."""
WHOLE = 2
"""The first check looks at all parameters, and the second one whether they changed since."""


@pytest.mark.slow
def test_check_of_many_parameters_has_few_operations() -> None:
    without, with_guard = count("large"), count("guard", "large")
    steps = range(WHOLE, FIRST_CHECKS)
    for plain, checked in ((without["operations"][n], with_guard["operations"][n]) for n in steps):
        extra = Counter(checked) - Counter(plain)
        kernels = sum(n for name, n in extra.items() if name.split(".")[1] not in VIEWS)
        assert 0 < kernels <= MOST_KERNELS
        assert extra.total() <= MOST_OPERATIONS
    assert len(with_guard["judged"]) == FIRST_CHECKS
    assert max(with_guard["judged"][WHOLE:]) <= MOST_JUDGING


@pytest.mark.slow
def test_optimizer_that_nobody_steps_does_not_stay_armed() -> None:
    with_guard = count("guard", "unstepped")

    assert with_guard["hooks"][MOST_WAITS - 1] > 0
    assert set(with_guard["hooks"][MOST_WAITS:]) == {0}
