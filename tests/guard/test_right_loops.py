"""Right trainings that users write in their own ways are silent under guard."""

from __future__ import annotations

import pytest

from tests.guard import right
from tests.guard.trainer import Trainer

pytestmark = [pytest.mark.launch, pytest.mark.slow]


@pytest.mark.parametrize(
    ("loop", "steps", "every"),
    [
        *(pytest.param(loop, 16, 3, marks=pytest.mark.by_day(6)) for loop in right.LOOPS),
        ("schedules.plateau", 320, 1),
        ("reductions.short_fifth_group", 31, 5),  # all of these steps are the short ones
    ],
)
def test_right_loop_is_silent(under_guard: Trainer, loop: str, steps: int, every: int) -> None:
    run = under_guard(loop, steps=steps, every=every)

    assert set(run.codes) == {0}
    assert run.alarms == []
    assert run.summary["error"] == ""
