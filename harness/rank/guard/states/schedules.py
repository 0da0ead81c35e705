"""The learning rates of the steps, and the schedules of torch that change them.

A rate is a number of Python, so each step is looked at, and no device is asked.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from ....detectors.arithmetic import begins_with_jump
from ...events import NewSchedule, PreparedSchedule, instrument
from ..fence import Fence
from ..posting.posts import Alarm

PATIENCE = 4
"""Steps in a row that make a fault: when a loss scaler skips a step, its schedule may go on, in a
test each fourth time. accelerate 0.15.0 steps a schedule four times in each step
(``scheduler_while_accumulating``)."""
OTHERS = 2
"""Steps in a row in which a schedule sets rates that no step uses, and that make a fault. Opacus
1.5.1 keeps the groups of before a resume (``opacus_resumed_rate``)."""
JUMP = 1.5
"""How many times the second rate the first one is, if the schedule did not set it. DeepSpeed 0.15.2
begins a warmup with 0.1, 0, 0.025 (``warmup_first_step``); a decay from 0.1 to 0.09 is right."""
FIRST_RATES = 6
"""First rates of a group that are looked at: those that a loop sets by its batches fall again. With
three rates the right loop ``schedules.rate_of_each_batch`` (3, 1, 2, 3, 1, 2) had an alarm."""
MOST_GROUPS = 64
"""Groups of an optimizer whose first rates are kept: a limit of memory."""
MOVING: dict[str, Callable[[Any], bool]] = {
    "CosineAnnealingLR": lambda one: one.eta_min not in one.base_lrs,
    "CosineAnnealingWarmRestarts": lambda one: one.eta_min not in one.base_lrs and one.T_0 > 1,
    "ExponentialLR": lambda one: one.gamma != 1,
}
"""Schedules whose rate is another one after each of their steps, with the condition for it."""


class Schedule:
    """A schedule of torch, and the steps of the optimizer since it moved as it should."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = weakref.ref(scheduler)
        self.name = type(scheduler).__name__
        self._count: Any = None
        self._rates: list[float] = []
        self._ahead = self._still = self._apart = 0
        self._copy_count: Any = None
        """How far a schedule within it has moved that a load has put there."""

    def step(
        self,
        rates: list[float],
        per_step: set[int],
        groups: list[dict[str, Any]],
        is_alone: bool,
        optimizers: Container[Any],
    ) -> Alarm | None:
        """Note a step of the optimizer with these rates and groups. ``per_step`` are the numbers of
        steps that the schedule may take in it; if it is empty, any. ``is_alone``: no
        other schedule has this optimizer. ``optimizers`` are those for which some were constructed.
        """
        scheduler = self.scheduler()
        before, self._count = self._count, getattr(scheduler, "last_epoch", None)
        rates_before, self._rates = self._rates, rates
        if scheduler is None or before is None or self._count is None:
            return None
        steps = self._count - before
        self._ahead = self._ahead + 1 if per_step and steps not in per_step else 0
        moves = self.name in MOVING and MOVING[self.name](scheduler)
        copy = self._copy_within(scheduler, optimizers) if rates == rates_before else None
        setter = copy or scheduler
        is_apart = (is_alone or copy is not None) and _sets_others(setter, rates, groups)
        self._apart = self._apart + 1 if is_apart else 0
        is_own = rates == list(getattr(scheduler, "_last_lr", rates))  # or the loop has set others
        is_still = (
            is_alone and moves and steps > 0 and any(rates) and rates == rates_before and is_own
        )
        self._still = self._still + 1 if is_still and not is_apart else 0
        if self._apart == OTHERS:
            text = (
                f"{type(setter).__name__} sets the learning rate {setter._last_lr[0]:.4g} of other "
                f"groups than those that the optimizer steps, with {rates[0]:.4g}: what wraps the "
                "optimizer kept groups that a load has replaced"
            )
            return Alarm("schedule", "apart", text)
        if self._ahead == PATIENCE:
            text = f"the schedule goes on by {steps} steps with each step of the optimizer"
            return Alarm("schedule", "ahead", text, size=float(steps))
        if self._still == PATIENCE:
            text = f"{self.name} goes on, and the learning rate stays {rates[0]:.4g}"
            return Alarm("schedule", "still", text)
        return None

    def _copy_within(self, scheduler: Any, optimizers: Container[Any]) -> Any:
        """A schedule within this one that has moved since the last step, and that nobody has
        constructed: a load has put it there, with a copy of the optimizer. None without one."""
        values = vars(scheduler).values()
        schedules = (one for one in values if isinstance(one, LRScheduler))
        copy = next((one for one in schedules if one.optimizer not in optimizers), None)
        before, self._copy_count = self._copy_count, getattr(copy, "last_epoch", None)
        return copy if before is not None and before != self._copy_count else None


def _sets_others(scheduler: Any, rates: list[float], groups: list[dict[str, Any]]) -> bool:
    """Whether a schedule sets rates of groups that the optimizer has not, such as a wrapper's."""
    held = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    set_rates = getattr(scheduler, "_last_lr", None)
    if type(held) is not list or type(set_rates) is not list or not rates:
        return False
    is_apart = len(held) == len(groups) == len(rates) == len(set_rates) and not any(
        one is other for one, other in zip(held, groups)
    )
    return is_apart and all(
        type(one) is float and one != rate for one, rate in zip(set_rates, rates)
    )


class Schedules:
    """The schedules and the rates of all optimizers."""

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self._of: weakref.WeakKeyDictionary[Any, list[Schedule]] = weakref.WeakKeyDictionary()
        self._prepared: weakref.WeakSet[Any] = weakref.WeakSet()
        self._set: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers whose first rate a schedule of torch has set."""
        self._first_rates: weakref.WeakKeyDictionary[Any, dict[int, list[float]]]
        self._first_rates = weakref.WeakKeyDictionary()

    def subscribe(self, fence: Fence) -> None:
        """Subscribe to what constructs schedules."""

        def prepare(event: PreparedSchedule) -> None:
            if event.owner.step_with_optimizer:
                self.prepared(event.owner.scheduler)

        instrument.on(NewSchedule, after=fence.guarded(lambda event: self.new(event.owner)))
        instrument.on(PreparedSchedule, after=fence.guarded(prepare))

    def new(self, scheduler: Any) -> None:
        """Note a schedule, when it was constructed."""
        optimizer = getattr(scheduler, "optimizer", None)
        for name in ("optimizer", "original_optimizer"):  # accelerate and Opacus wrap that of torch
            optimizer = getattr(optimizer, name, optimizer)
        if optimizer is not None:
            self._of.setdefault(optimizer, []).append(Schedule(scheduler))

    def of(self, optimizer: Any) -> list[Any]:
        """The schedules of an optimizer's rates."""
        schedulers = [schedule.scheduler() for schedule in self._of.get(optimizer, ())]
        return [scheduler for scheduler in schedulers if scheduler is not None]

    def prepared(self, scheduler: Any) -> None:
        """Note that accelerate steps this schedule of torch, with the optimizer."""
        self._prepared.add(scheduler)

    def step(self, optimizer: Any, ranks: int) -> None:
        """Note a step of an optimizer."""
        groups = optimizer.param_groups
        rates = [group["lr"] for group in groups if type(group.get("lr")) is float]
        schedules = self._of.get(optimizer, ())
        for schedule in schedules:
            is_prepared = schedule.scheduler() in self._prepared
            alarm = schedule.step(
                rates,
                {0, 1, ranks} if is_prepared else set(),
                groups,
                len(schedules) == 1,
                self._of,
            )
            self.alarms += [alarm] if alarm else []
        self._begin(optimizer, groups)

    def _begin(self, optimizer: Any, groups: list[dict[str, Any]]) -> None:
        """Look at the first rates of each group: DeepSpeed steps the groups one after the other."""
        by_group = self._first_rates.setdefault(optimizer, {})
        for group in groups if len(by_group) < MOST_GROUPS else ():
            rates, rate = by_group.setdefault(id(group), []), group.get("lr")
            if not rates and self.of(optimizer):
                self._set.add(optimizer)
            if len(rates) == FIRST_RATES or type(rate) is not float:
                continue
            rates.append(rate)
            is_jump = len(rates) == FIRST_RATES and begins_with_jump(rates, JUMP)
            if is_jump and rates[1:] == sorted(rates[1:]) and optimizer not in self._set:
                rate_list = ", ".join(f"{one:.4g}" for one in rates[:3])
                text = (
                    f"the learning rates of the first steps are {rate_list}: the first is not the "
                )
                self.alarms.append(Alarm("schedule", "first", f"{text}schedule's", size=rates[0]))
