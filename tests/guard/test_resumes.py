"""An optimizer goes on after a load, or begins again in one of several ways."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, SequentialLR

from harness.rank.guard.states.resumes import Resume


class Run:
    """A training of one layer, with a schedule."""

    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)
        self.optimizer: Any = torch.optim.AdamW(self.layer.parameters(), 1e-3)
        self.schedules: list[Any] = [LambdaLR(self.optimizer, lambda step: 1 / (1 + step))]
        self.told: list[str] = []
        self.resume: Resume | None = None

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            self.layer(torch.ones(1, 2)).sum().backward()
            if self.resume and not self.resume.is_over:
                self.told += [one.kind for one in self.resume.before_step(self.optimizer)]
            self.optimizer.step()
            self.schedules[-1].step()
        return self

    def state(self) -> Any:
        return copy.deepcopy((self.optimizer.state_dict(), self.schedules[-1].state_dict()))

    def load(self, state: Any, schedule: bool = True) -> Run:
        self.optimizer.load_state_dict(state[0])
        self.resume = Resume(self.optimizer, lambda _: self.schedules)
        if schedule:
            self.schedules[-1].load_state_dict(state[1])
        return self


@pytest.fixture
def state() -> Any:
    return Run().train(20).state()


def test_resumed_training_is_silent(state: Any) -> None:
    assert Run().load(state).train(5).told == []


def test_schedules_that_follow_each_other_are_silent() -> None:
    """The second one has just begun."""

    def run() -> Run:
        run = Run()
        warmup = LinearLR(run.optimizer, 0.1, 1.0, 20)
        second = LinearLR(run.optimizer, 1.0, 0.1, 20)
        run.schedules = [warmup, second, SequentialLR(run.optimizer, [warmup, second], [20])]
        return run

    resumed = run().load(run().train(20).state())
    resumed.schedules.pop()  # torch's instrument does not tell of it
    resumed.schedules.append(resumed.schedules.pop())
    assert resumed.train(5).told == []


def _again(run: Run, state: Any) -> None:
    run.load(state, schedule=False)


def _rate(run: Run, state: Any) -> None:
    run.load(state)
    run.optimizer.param_groups[0]["lr"] = 1e-3


def _lost(run: Run, state: Any) -> None:
    run.load(state)
    run.optimizer.state.clear()


def _other_parameters(run: Run, state: Any) -> None:
    run.load(state)
    run.layer = nn.Linear(2, 2)
    run.optimizer.param_groups[0]["params"] = list(run.layer.parameters())


def _count(run: Run, state: Any) -> None:
    run.load(state)
    for entry in run.optimizer.state.values():
        entry["step"].zero_()


@pytest.mark.parametrize(
    ("fault", "alarms"),
    [
        (_again, ["again"]),
        (_rate, ["resume"]),
        (_lost, []),  # a new phase
        (_other_parameters, ["state"]),
        (_count, ["count"]),
    ],
)
def test_what_a_load_lost_is_told(
    state: Any, fault: Callable[[Run, Any], None], alarms: list[str]
) -> None:
    run = Run()
    fault(run, state)
    assert run.train(5).told == alarms


def _descent(last_epoch: int, has_own_rate: bool = True) -> Run:
    """A training by SGD, whose state has no steps; resumed by its schedule's ``last_epoch``."""
    saved, resumed = Run(), Run()
    for run in (saved, resumed):
        run.optimizer = torch.optim.SGD(run.layer.parameters(), 1e-3)
    saved.schedules = [LambdaLR(saved.optimizer, lambda step: 1 / (1 + step))]
    resumed.optimizer.load_state_dict(saved.train(20).optimizer.state_dict())
    resumed.schedules = [LambdaLR(resumed.optimizer, lambda step: 1 / (1 + step), last_epoch)]
    resumed.resume = Resume(resumed.optimizer, lambda _: resumed.schedules)
    if has_own_rate:
        resumed.optimizer.param_groups[0]["lr"] = 1e-3
    return resumed


def test_rate_of_an_optimizer_without_a_state_is_compared_if_its_schedule_goes_on() -> None:
    assert _descent(19).train(5).told == ["resume"]
    assert _descent(19, has_own_rate=False).train(5).told == []


def test_new_schedule_of_an_optimizer_without_a_state_is_silent() -> None:
    assert _descent(-1).train(5).told == []


def test_state_of_an_optimizer_that_takes_no_step_is_told(state: Any) -> None:
    run = Run().load(state)
    assert run.resume is not None
    alarm = run.resume.left_by(torch.optim.AdamW(run.layer.parameters()))
    assert alarm is not None
    assert alarm.kind == "other"
    assert "20 steps" in alarm.text


def test_optimizer_of_other_parameters_or_with_a_state_is_none_that_was_loaded(state: Any) -> None:
    run = Run().load(state)
    assert run.resume is not None
    assert run.resume.left_by(Run().optimizer) is None
    assert run.resume.left_by(run.optimizer) is None
