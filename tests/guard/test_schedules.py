"""The schedules of learning rates: they go on with the steps, and the rates with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from harness.rank.guard.states.schedules import PATIENCE, Schedules


def optimizer(rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], rate)


def kinds(schedules: Schedules) -> list[str]:
    return [alarm.kind for alarm in schedules.alarms]


def trained(
    make: Any, times: int = 1, prepared: bool = False, ranks: int = 1, steps: int = 2 * PATIENCE
) -> list[str]:
    """The alarms of a training whose schedule takes ``times`` steps for each of the optimizer."""
    schedules, optimizing = Schedules(), optimizer()
    schedule = make(optimizing)
    schedules.new(schedule)
    if prepared:
        schedules.prepared(schedule)
    for _ in range(steps):
        optimizing.step()
        schedules.step(optimizing, ranks)
        for _ in range(times):
            schedule.step()
    return kinds(schedules)


def cosine(optimizing: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizing, 100)


class Still(lr_scheduler.CosineAnnealingLR):
    """Counts its steps, and leaves the rate."""

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1


Still.__name__ = "CosineAnnealingLR"


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (cosine, 1),
        (cosine, 0),  # it steps with each epoch
        (cosine, 4),  # and with each micro-batch: the loop may count so
        (lambda one: lr_scheduler.ExponentialLR(one, 1.0), 1),
        (lambda one: lr_scheduler.CosineAnnealingLR(one, 100, eta_min=0.1), 1),
        (lambda one: lr_scheduler.LambdaLR(one, lambda step: min(1, step / 4)), 1),
    ],
)
def test_right_schedules_give_no_alarm(make: Any, times: int) -> None:
    assert trained(make, times) == []


def test_schedule_that_goes_on_with_the_rate_unchanged_is_a_fault() -> None:
    assert trained(lambda one: Still(one, 100)) == ["still"]


@pytest.mark.parametrize(("times", "ranks", "faults"), [(1, 2, []), (2, 2, []), (4, 2, ["ahead"])])
def test_prepared_schedule_takes_a_step_for_each_rank(
    times: int, ranks: int, faults: list[str]
) -> None:
    assert trained(cosine, times, prepared=True, ranks=ranks) == faults


def test_skipped_steps_put_a_prepared_schedule_ahead_once() -> None:
    schedules, optimizing = Schedules(), optimizer()
    schedule = cosine(optimizing)
    schedules.new(schedule)
    schedules.prepared(schedule)
    for step in range(4 * PATIENCE):
        schedule.step()
        if step % PATIENCE:
            optimizing.step()
            schedules.step(optimizing, 1)
    assert kinds(schedules) == []


@pytest.mark.parametrize(
    ("rates", "faults"),
    [
        ((0.1, 0.0, 0.025, 0.05, 0.075, 0.1), ["first"]),
        ((0.0, 0.025, 0.05, 0.075, 0.1, 0.1), []),
        ((0.1, 0.09, 0.08, 0.07, 0.06, 0.05), []),
        ((0.1, 0.1, 0.1, 0.2, 0.2, 0.2), []),
        ((0.1, 0.01, 0.03, 0.02, 0.1, 0.05), []),  # that of each batch
    ],
)
def test_first_step_has_the_rate_of_the_schedule(
    rates: tuple[float, ...], faults: list[str]
) -> None:
    schedules, optimizing = Schedules(), optimizer()
    for rate in rates:
        optimizing.param_groups[0]["lr"] = rate
        schedules.step(optimizing, 1)
    assert kinds(schedules) == faults


class Wrapper(torch.optim.Optimizer):
    """Wraps an optimizer as Opacus does: it keeps its groups, or asks for them."""

    def __init__(self, inner: torch.optim.Optimizer, keeps: bool) -> None:
        self.original_optimizer = inner
        self.keeps, self.kept = keeps, inner.param_groups
        self.defaults = inner.defaults

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.kept if self.keeps else self.original_optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.original_optimizer.step()


@pytest.mark.parametrize(
    ("keeps", "is_loaded", "faults"),
    [(True, True, ["apart"]), (False, True, []), (True, False, [])],
)
def test_schedule_that_sets_groups_which_nobody_steps_is_a_fault(
    keeps: bool, is_loaded: bool, faults: list[str]
) -> None:
    schedules, inner = Schedules(), optimizer()
    wrapper = Wrapper(inner, keeps)
    schedule = cosine(wrapper)
    schedules.new(schedule)
    if is_loaded:
        inner.load_state_dict(inner.state_dict())
    for _ in range(5):
        inner.step()
        schedules.step(inner, 1)
        schedule.step()
    assert kinds(schedules) == faults
