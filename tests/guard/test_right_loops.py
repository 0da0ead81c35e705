"""Right trainings that users write in their own ways are silent under guard."""

from __future__ import annotations

import pytest

from tests.guard import right
from tests.guard.trainer import Trainer

pytestmark = [pytest.mark.launch, pytest.mark.slow]


@pytest.mark.parametrize(
    "loop", [pytest.param(one, marks=pytest.mark.by_day(6)) for one in right.LOOPS]
)
def test_right_loop_is_silent(under_guard: Trainer, loop: str) -> None:
    run = under_guard(loop, steps=16)

    assert set(run.codes) == {0}
    assert run.alarms == []
    assert run.summary["error"] == ""


@pytest.mark.parametrize(
    ("loop", "steps", "every"),
    [
        ("schedules.plateau", 320, 1),
        ("reductions.short_fifth_group", 31, 5),  # all of these steps are the short ones
    ],
)
def test_right_loop_is_silent_in_a_longer_run(
    under_guard: Trainer, loop: str, steps: int, every: int
) -> None:
    run = under_guard(loop, steps=steps, every=every)

    assert set(run.codes) == {0}
    assert run.alarms == []
