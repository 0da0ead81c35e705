"""Steps that a loss scaler skips: a few are right, too many in a row are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.rank.guard.sampling.skips import LEAST, Skips, known_scale, most_skips
from tests.guard.trainer import Trainer


def skip(skips: Skips, times: int, scaler: Any = None, steps: int = 3) -> list[str]:
    alarms = [skips.skipped(scaler, steps) for _ in range(times)]
    return [alarm.text for alarm in alarms if alarm is not None]


def test_steps_that_are_skipped_for_ever_are_told_once() -> None:
    limit = most_skips(None)
    skips = Skips()
    assert skip(skips, limit - 1) == []
    (text,) = skip(skips, 50)
    assert text.startswith(f"the loss scaler skipped {limit} steps in a row, and no step was taken")
    assert "since step 3" in text


def test_step_that_is_taken_ends_the_row() -> None:
    skips, limit = Skips(), most_skips(None)
    for _ in range(3):
        assert skip(skips, limit - 1) == []
        skips.taken()


@pytest.mark.parametrize(
    ("scale", "backoff", "most"),
    [(2.0**16, 0.5, 20), (2.0**24, 0.5, 28), (2.0**16, 0.25, 12), (2.0**8, 0.5, 12), (1.0, 0.5, 8)],
)
def test_high_scale_may_fall_for_longer(scale: float, backoff: float, most: int) -> None:
    scaler = torch.amp.GradScaler("cpu", scale, backoff_factor=backoff)
    assert most_skips(scaler) == most >= LEAST


class Scaler:
    """As DeepSpeed's: it lowers its scale after ``patience`` skipped steps."""

    def __init__(self, scale: float, smallest: float = 1.0, patience: int = 0) -> None:
        self.cur_scale, self.min_scale, self.cur_hysteresis = scale, smallest, patience + 1

    def skip(self) -> None:
        if self.cur_hysteresis > 1:
            self.cur_hysteresis -= 1
        else:
            self.cur_scale = max(self.cur_scale / 2, self.min_scale)


@pytest.mark.parametrize(
    ("scaler", "falls", "after"),
    [
        (Scaler(2.0**32), True, 34),
        (Scaler(2.0**4), True, 6),
        (Scaler(2.0**4, patience=1), True, 7),
        (Scaler(2.0**9, smallest=2.0**7), True, 4),
        (Scaler(2.0**4, smallest=0.25), True, 6),
        (Scaler(1.0), False, LEAST),
        (Scaler(2.0**16), False, LEAST),
    ],
)
def test_a_scale_of_deepspeed_that_reached_its_end_or_never_falls_is_told(
    scaler: Scaler, falls: bool, after: int
) -> None:
    skips, wrapper = Skips(), SimpleNamespace(loss_scaler=scaler)
    for number in range(1, after + 1):
        if falls:
            scaler.skip()
        assert (skips.skipped(wrapper, 3) is not None) == (number == after)


def test_old_and_new_optimizers_of_deepspeed_have_the_scale() -> None:
    new = SimpleNamespace(loss_scale_config=SimpleNamespace(cur_scale=4.0, min_loss_scale=0.25))
    old = SimpleNamespace(cur_scale=4.0, min_loss_scale=0.25)
    for scaler in (new, old):
        scale = known_scale(scaler)
        assert scale is not None
        assert (scale.now, scale.smallest, scale.patience) == (4.0, 0.25, 0)
    assert known_scale(torch.amp.GradScaler("cpu")) is None


def test_two_skipped_steps_in_a_row_with_a_lost_loss_are_told_once() -> None:
    skips = Skips()
    assert skip(skips, 4) == []
    alarms = [skips.lost(is_lost, 5, 3) for is_lost in (True, False, True, True, True)]
    (alarm,) = (one for one in alarms if one is not None)
    assert "skipped 5 steps" in alarm.text
    assert "the loss itself is not finite" in alarm.text


@pytest.mark.slow
@pytest.mark.launch
def test_training_without_any_step_is_told(under_guard: Trainer) -> None:
    run = under_guard("ddp fp16 always_overflows", steps=16)

    assert run.told == [("scaler", "skips")]
    assert "no step was taken at all" in run.alarms[0]["text"]
    assert run.codes == [0, 0]
    assert "guard: " not in run.logs[1]
