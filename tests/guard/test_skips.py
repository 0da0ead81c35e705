"""Steps that a loss scaler skips: a few are right, too many in a row are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.rank.guard.skips import LEAST, Skips, most_skips
from tests.guard.conftest import Trainer


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
    [(2.0**16, 0.5, 20), (2.0**24, 0.5, 28), (2.0**16, 0.25, 12), (1.0, 0.5, 8), (2.0**9, 1.0, 8)],
)
def test_high_scale_may_fall_for_longer(scale: float, backoff: float, most: int) -> None:
    scaler = SimpleNamespace(_init_scale=scale, _backoff_factor=backoff)
    assert most_skips(scaler) == most >= LEAST


def test_the_scale_of_torchs_scaler_is_read() -> None:
    assert most_skips(torch.amp.GradScaler("cpu", 2.0**8)) == 12


@pytest.mark.launch
def test_training_without_any_step_is_told(under_guard: Trainer) -> None:
    run = under_guard("ddp fp16 always_overflows", steps=16)

    assert run.told == [("scaler", "skips")]
    assert "no step was taken at all" in run.alarms[0]["text"]
    assert run.codes == [0, 0]
    assert "guard: " not in run.logs[1]
