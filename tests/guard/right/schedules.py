"""Loops with learning rates that move in their own ways."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import lr_scheduler

from .common import Net, Steps, batches, classes_loss, loop, net_and_adam, parallel, trained


def _by(make: Any, kind: Any = None, interval: int = 1) -> Steps:
    model = parallel(Net())
    optimizer = kind(model.parameters()) if kind else torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = make(optimizer)

    def move(step: int, loss: Any) -> None:
        if step == 0 or step % interval:
            return
        if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
            mean = loss.detach().clone()  # with a loss of each rank, the rates would part
            dist.all_reduce(mean)
            schedule.step(float(mean))
        else:
            schedule.step()

    return trained(model, optimizer, before=move)


def _with(before: Any) -> Steps:
    """Train, and change the optimizer before each step."""
    model = parallel(Net())
    groups = [{"params": list(one.parameters())} for one in model.module.children()]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    return trained(model, optimizer, before=lambda step, _: before(step, model, optimizer))


@loop
def best_again() -> Steps:
    """Goes back to its best state after a plateau, with half the rate."""
    best: list[Any] = []

    def go_back(step: int, model: Any, optimizer: Any) -> None:
        if step == 5:
            best[:] = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        if step == 10:
            model.load_state_dict(best[0])
            optimizer.load_state_dict(best[1])
            for group in optimizer.param_groups:
                group["lr"] /= 2

    return _with(go_back)


def _descent(weights: Any) -> Any:
    return torch.optim.SGD(weights, 0.05, momentum=0.9)


@loop
def one_after_the_other() -> Steps:
    def make(optimizer: Any) -> Any:
        warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        flat = lr_scheduler.ConstantLR(optimizer, 1.0)
        return lr_scheduler.SequentialLR(optimizer, [warm, flat], [5])

    return _by(make)


@loop
def by_hand() -> Steps:
    """The loop sets the rate itself, and each layer has one of its own."""

    def set_rates(step: int, _: Any, optimizer: Any) -> None:
        for depth, group in enumerate(optimizer.param_groups):
            group["lr"] = 1e-3 * 0.5**depth * (1 + step % 10) / 10

    return _with(set_rates)


@loop
def overflows_now_and_then() -> Steps:
    """A loss scaler that grows often skips often; the schedule goes on only with steps."""
    model, optimizer = net_and_adam()
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    scaler = torch.amp.GradScaler("cpu", 2.0**14, growth_interval=2)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = classes_loss(model, batch)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
            yield model, loss


@loop
def swapped_averages() -> Steps:
    def make(optimizer: Any) -> Any:
        return torch.optim.swa_utils.SWALR(optimizer, 5e-4, anneal_epochs=5)

    return _by(make)


@loop
def least_rate_by_hand() -> Steps:
    schedules: list[Any] = []

    def decay(step: int, _: Any, optimizer: Any) -> None:
        if not schedules:
            schedules.append(lr_scheduler.ExponentialLR(optimizer, 0.5))
            return
        schedules[0].step()
        for group in optimizer.param_groups:
            group["lr"] = max(group["lr"], 2e-4)

    return _with(decay)


@loop
def rate_of_each_batch() -> Steps:
    """A batch with more tokens has a higher rate."""

    def set_rate(step: int, _: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (3, 1, 2)[step % 3]

    return _with(set_rate)


def _second_phase(begin: Any) -> Steps:
    """After some steps the state is loaded, and a second phase begins, perhaps with a schedule."""
    schedules: list[Any] = []

    def load(step: int, _: Any, optimizer: Any) -> None:
        for schedule in schedules:
            schedule.step()
        if step == 8:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            schedules.extend(begin(optimizer))

    return _with(load)


@loop
def second_phase_with_a_rate_of_its_own() -> Steps:
    def begin(optimizer: Any) -> Any:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 3e-4
        return [lr_scheduler.CosineAnnealingLR(optimizer, 50)]

    return _second_phase(begin)


@loop
def second_phase_without_the_state() -> Steps:
    def clear(optimizer: Any) -> Any:
        optimizer.state.clear()
        return []

    return _second_phase(clear)


@loop
def second_phase_with_a_state_of_zeros() -> Steps:
    def clear(optimizer: Any) -> Any:
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
        return []

    return _second_phase(clear)


@loop
def critic_after_the_load_of_a_generator() -> Steps:
    """The state of the generator is loaded, and a new critic of the same shape steps first."""
    critics: list[Steps] = []

    def train_critic(step: int, _: Any, optimizer: Any) -> None:
        if step == 8:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            critics.append(_by(lambda one: lr_scheduler.ConstantLR(one, 1.0)))
        for critic in critics:
            next(critic)

    return _with(train_critic)


LOOPS: dict[str, Callable[[], Steps]] = {
    "warm_restarts": lambda: _by(lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 7, 2)),
    "short_restarts": lambda: _by(lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 2)),
    "one_cycle": lambda: _by(lambda one: lr_scheduler.OneCycleLR(one, 1e-2, total_steps=10_000)),
    "cyclic": lambda: _by(
        lambda one: lr_scheduler.CyclicLR(one, 1e-4, 1e-2, step_size_up=5), _descent
    ),
    "short_cycles": lambda: _by(
        lambda one: lr_scheduler.CyclicLR(one, 1e-4, 1e-2, step_size_up=1, mode="exp_range"),
        _descent,
    ),
    "plateau": lambda: _by(lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=3), interval=5),
    "cosine_beyond_its_end": lambda: _by(lambda one: lr_scheduler.CosineAnnealingLR(one, 9, 1e-5)),
    "long_cosine": lambda: _by(lambda one: lr_scheduler.CosineAnnealingLR(one, 10**8)),
    "by_epochs": lambda: _by(lambda one: lr_scheduler.ExponentialLR(one, 0.9), interval=8),
    "multiplied": lambda: _by(lambda one: lr_scheduler.MultiplicativeLR(one, lambda step: 0.99)),
    # Rates of a table, high and low in turns.
    "zigzag": lambda: _by(
        lambda one: lr_scheduler.LambdaLR(one, lambda step: (1.0, 0.4, 0.9)[step % 3])
    ),
    "decay_after_a_stable_phase": lambda: _second_phase(
        lambda one: [lr_scheduler.LinearLR(one, 1.0, 0.0, total_iters=100)]
    ),
}
