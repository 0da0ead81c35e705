"""What is unlike by design is said: it is no fault of the script."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from harness.probe.rank.unlike import SCHEDULE, schedules_unlike_by_design, unlike_by_design


class AcceleratedScheduler:
    """Stands in for accelerate's."""

    def __init__(self, split_batches: bool, step_with_optimizer: bool = True) -> None:
        self.split_batches, self.step_with_optimizer = split_batches, step_with_optimizer


def test_a_schedule_that_accelerate_steps_once_for_each_rank_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "accelerate.scheduler", raising=False)
    assert schedules_unlike_by_design() == []
    module = SimpleNamespace(AcceleratedScheduler=AcceleratedScheduler)
    monkeypatch.setitem(sys.modules, "accelerate.scheduler", module)
    assert schedules_unlike_by_design() == []
    kept = [AcceleratedScheduler(True), AcceleratedScheduler(False, False)]
    assert schedules_unlike_by_design() == []
    kept.append(AcceleratedScheduler(False))
    assert schedules_unlike_by_design() == [SCHEDULE]


def test_a_norm_over_the_batch_is_named_unless_it_is_frozen() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    (line,) = unlike_by_design(model)
    assert line.startswith("BatchNorm1d (0) normalises over the micro-batch of a rank")
    assert unlike_by_design(model.eval()) == []
