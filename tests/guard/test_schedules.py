"""Schedules go on with the steps, and optimizers and schedules after a load."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LambdaLR, LinearLR, SequentialLR

from harness.rank.guard.states.resumes import Resume
from harness.rank.guard.states.schedules import PATIENCE, Schedules


def optimizer(rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], rate)


def kinds(schedules: Schedules) -> list[str]:
    return [alarm.kind for alarm in schedules.alarms]


def trained(
    make: Any, times: int = 1, prepared: bool = False, ranks: int = 1, others: Any = ()
) -> list[str]:
    """The alarms of a training whose schedule takes ``times`` steps for each of the optimizer;
    ``others`` are schedules of other optimizers."""
    schedules, optimizing = Schedules(), optimizer()
    schedule = make(optimizing)
    for each in (schedule, *others):
        schedules.new(each)
    if prepared:
        schedules.prepared(schedule)
    for _ in range(2 * PATIENCE):
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
    ("make", "settings", "faults"),
    [
        (cosine, {}, []),
        (cosine, {"times": 0}, []),  # it steps with each epoch
        (cosine, {"times": 4}, []),  # and with each micro-batch: the loop may count so
        (lambda one: lr_scheduler.ExponentialLR(one, 1.0), {}, []),
        (lambda one: lr_scheduler.CosineAnnealingLR(one, 100, eta_min=0.1), {}, []),
        (lambda one: lr_scheduler.LambdaLR(one, lambda step: min(1, step / 4)), {}, []),
        (lambda one: Still(one, 100), {}, ["still"]),
        # A prepared one takes a step for each rank.
        (cosine, {"prepared": True, "ranks": 2}, []),
        (cosine, {"times": 2, "prepared": True, "ranks": 2}, []),
        (cosine, {"times": 4, "prepared": True, "ranks": 2}, ["ahead"]),
    ],
)
def test_schedule_that_leaves_the_rate_or_goes_ahead_of_the_steps_is_a_fault(
    make: Any, settings: dict[str, Any], faults: list[str]
) -> None:
    assert trained(make, **settings) == faults


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
        (Run.load, []),
        (_again, ["again"]),
        (_rate, ["resume"]),
        (_lost, []),  # a new phase
        (_other_parameters, ["state"]),
        (_count, ["count"]),
    ],
)
def test_what_a_load_lost_is_told(
    state: Any, fault: Callable[[Run, Any], object], alarms: list[str]
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
    assert _descent(-1).train(5).told == []  # a new schedule


def test_state_of_an_optimizer_that_takes_no_step_is_told(state: Any) -> None:
    run = Run().load(state)
    assert run.resume is not None
    alarm = run.resume.left_by(torch.optim.AdamW(run.layer.parameters()))
    assert alarm is not None
    assert alarm.kind == "other"
    assert "20 steps" in alarm.text
    # One of other parameters, or with a state, is none that was loaded.
    assert run.resume.left_by(Run().optimizer) is None
    assert run.resume.left_by(run.optimizer) is None


class Joined(LinearLR):
    """A warmup that goes on with another schedule, and keeps its rate if that has a copy."""

    def __init__(self, optimizing: Any, after: Any) -> None:
        self.after = after
        super().__init__(optimizing, 1.0)

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        if self.last_epoch:
            self.after.step()
            self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def of_another(optimizing: Any) -> Any:
    return Joined(optimizing, cosine(OTHER))


def of_a_copy(optimizing: Any) -> Any:
    return Joined(optimizing, copy.deepcopy(cosine(optimizing)))


OTHER = optimizer(0.3)


@pytest.mark.parametrize(("make", "faults"), [(of_another, []), (of_a_copy, ["apart"])])
def test_schedule_within_another_that_moves_a_copy_of_the_optimizer_is_a_fault(
    make: Any, faults: list[str]
) -> None:
    """That of another optimizer, such as a discriminator's, is none: it was constructed for it."""
    assert trained(make, others=[cosine(OTHER)]) == faults


class OptimizerParamScheduler:
    """Megatron's schedule of the weight decay: 0.1 more in each step."""

    def __init__(self, optimizing: Any, steps: int) -> None:
        self.optimizer, self.steps = optimizing, steps

    def get_wd(self) -> float:
        return 0.1 * self.steps

    def step(self) -> None:
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["weight_decay"] = self.get_wd()


@pytest.mark.parametrize(
    ("loaded", "first", "sets_again", "faults"),
    [
        (0.3, 0.3, True, []),
        (0.3, 0.15, True, ["decay"]),  # of the schedule that the constructor has
        (0.2, 0.2, True, []),  # the schedule begins anew, and sets it after the first step
        (0.3, 0.15, False, []),  # the loop sets it
        (0.3, 0.0, True, []),  # decays in each second step
    ],
)
def test_weight_decay_of_the_first_step_is_that_of_its_schedule(
    loaded: float, first: float, sets_again: bool, faults: list[str]
) -> None:
    optimizing = optimizer()
    schedule = OptimizerParamScheduler(optimizing, 3)
    (group,) = optimizing.param_groups
    group["weight_decay"] = loaded
    resume = Resume(optimizing, lambda _: [])
    group["weight_decay"] = first
    alarms = list(resume.before_step(optimizing))
    schedule.step()
    if not sets_again:
        group["weight_decay"] = first
    alarms += [] if resume.is_over else resume.before_step(optimizing)
    assert [alarm.kind for alarm in alarms] == faults
