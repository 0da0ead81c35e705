"""A step that is not checked does what it does without guard."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from harness.rank.guard.budget import FIRST_CHECKS
from harness.rank.guard.training import MOST_WAITS

pytestmark = pytest.mark.launch


def count(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.guard.counting", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_step_that_is_not_checked_has_no_other_operation_and_no_hook() -> None:
    without, with_guard = count(), count("guard")
    first = range(FIRST_CHECKS)

    assert with_guard["checked"] == [1, 2, 3, 4, 5]
    assert with_guard["operations"][FIRST_CHECKS:] == without["operations"][FIRST_CHECKS:]
    assert with_guard["hooks"][FIRST_CHECKS:] == without["hooks"][FIRST_CHECKS:]
    assert all(with_guard["operations"][at] != without["operations"][at] for at in first)
    assert all(with_guard["hooks"][at] > without["hooks"][at] for at in first)
    step, handlers = without["microseconds"], with_guard["handlers_microseconds"]
    more = with_guard["microseconds"] - step
    print(f"handlers {handlers:.1f} us, {more:.1f} us more in a step of {step:.0f} us")


def test_optimizer_that_nobody_steps_does_not_stay_armed() -> None:
    with_guard = count("guard", "unstepped")

    assert with_guard["hooks"][MOST_WAITS - 1] > 0
    assert set(with_guard["hooks"][MOST_WAITS:]) == {0}
