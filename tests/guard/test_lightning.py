"""Lightning that clears gradients before a step uses them, without code of the user in between."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.rank.guard.facts import cleared_by_lightning
from harness.rank.guard.posting.posts import Alarm

EVALUATION = "lightning.pytorch.loops.evaluation_loop"


def alarm_of(
    clear: Callable[[], Alarm | None], done: int, window: int, module: str
) -> Alarm | None:
    """What is told if a method of this module clears gradients after ``done`` batches."""
    progress = SimpleNamespace(current=SimpleNamespace(completed=done))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    trainer = SimpleNamespace(accumulate_grad_batches=window, fit_loop=loop)
    code = "def run(self, clear): return clear()"
    space: dict[str, Any] = {"__name__": module}
    exec(compile(code, f"/env/site-packages/{module}.py", "exec"), space)
    told: Alarm | None = space["run"](SimpleNamespace(trainer=trainer), clear)
    return told


def by_the_user() -> Alarm | None:
    return cleared_by_lightning()


@pytest.mark.parametrize(
    ("clear", "done", "window", "module", "is_told"),
    [
        (cleared_by_lightning, 6, 4, EVALUATION, True),
        (cleared_by_lightning, 8, 4, EVALUATION, False),  # between two steps
        (cleared_by_lightning, 0, 4, EVALUATION, False),  # a hook has ended the epoch before
        (cleared_by_lightning, 3, 1, EVALUATION, False),
        (by_the_user, 6, 4, EVALUATION, False),  # a hook may drop gradients that are not finite
        (cleared_by_lightning, 6, 4, "another.trainer", False),
    ],
)
def test_gradients_of_a_part_of_the_micro_batches_are_cleared(
    clear: Callable[[], Alarm | None], done: int, window: int, module: str, is_told: bool
) -> None:
    alarm = alarm_of(clear, done, window, module)
    told = (alarm.check, alarm.kind, alarm.size) if alarm is not None else None
    assert told == (("gradients", "cleared", 2.0) if is_told else None)
