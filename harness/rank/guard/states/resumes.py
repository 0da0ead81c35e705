"""A training goes on after a load: rates, counts of steps and schedules are those of the save.

All of it is read on the host: what an optimizer keeps on a device is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ....detectors.arithmetic import NOISE
from ...training.megatron import scheduled_decays
from ..posting.posts import Alarm

BEGINNING = 4
"""Steps of a state that has just begun, too: its schedule may rightly be at its beginning. No case
set this number."""


class Resume:
    """The first two steps of an optimizer after a load of its state."""

    def __init__(self, optimizer: Any, schedules: Callable[[Any], list[Any]]) -> None:
        self._rates = rates(optimizer)
        self._ids = _ids(optimizer)
        self._count, self._states = steps_of(optimizer), _states(optimizer)
        self._schedules, self._begun = schedules, ""
        self._first_rates = {group.get("initial_lr") for group in optimizer.param_groups}
        """Those from which the schedule at the save began; None without a schedule."""
        self._before = {id(one) for one in schedules(optimizer)}
        """The schedules that were there before the load."""
        self._steps = 0
        self._decays = [group.get("weight_decay") for group in optimizer.param_groups]
        self._unlike: list[tuple[float, float]] = []
        """Weight decays of the first step that are not those of their schedule."""

    @property
    def is_over(self) -> bool:
        return self._steps == 2

    def before_step(self, optimizer: Any) -> Iterator[Alarm]:
        """Compare what the optimizer has before a step with the loaded state."""
        self._steps += 1
        # A loop that begins another schedule may take one step more with the loaded weight decay.
        unlike = [
            (decay, scheduled)
            for decay, scheduled in scheduled_decays(optimizer)
            if decay and _differ(decay, scheduled) and decay not in self._decays
        ]
        if self._steps == 2 and self._unlike and not unlike:
            decay, scheduled = self._unlike[0]
            text = (
                f"the first step after the load uses the weight decay {decay:.4g} instead of "
                f"{scheduled:.4g}, which its schedule has for it"
            )
            yield Alarm("schedule", "decay", text, size=abs(decay - scheduled))
        self._unlike = unlike
        if self._steps == 1:
            counts = (getattr(s, "last_epoch", 0) or 0 for s in self._schedules(optimizer))
            if not self._states and not any(count > 0 for count in counts):
                # The state may be the one with which SGD begins.
                self._steps = 1 if unlike else 2
                return
            yield from self._compare_states(optimizer)
            self._begun = self._begun_schedule(optimizer)
        pairs = zip(self._rates, rates(optimizer))
        changes = (
            (before, rate)
            for before, rate in pairs
            if before and rate is not None and _differ(rate, before)
        )
        before, rate = next(changes, (0.0, 0.0))
        if not before:
            return
        if self._steps == 1 and self._is_of_schedule(rate, optimizer):
            text = (
                f"the learning rate was {before:.4g} in the loaded state, and the first step uses "
                f"{rate:.4g}"
            )
            yield Alarm("schedule", "resume", text, size=abs(rate - before))
            self._steps = 2
        elif self._steps == 2 and self._begun and self._count > BEGINNING:
            text = (
                f"the loaded state has taken {self._count:.0f} steps, and {self._begun} begins "
                f"with the first one: the second step after the load uses the learning rate "
                f"{rate:.4g} instead of about {before:.4g}"
            )
            yield Alarm("schedule", "again", text, size=abs(rate - before))

    def _compare_states(self, optimizer: Any) -> Iterator[Alarm]:
        states, count = _states(optimizer), steps_of(optimizer)
        kept = sum(map(bool, optimizer.state.values()))  # a new phase may clear them
        if 2 * states < self._states <= kept:
            text = (
                f"the loaded state was that of {self._states} parameters, and the first step has "
                f"that of {states}: the others begin again"
            )
            yield Alarm("schedule", "state", text, size=float(self._states - states))
            return
        values = [value for state in _held(optimizer) for value in state.values()]
        moments = [one for one in values if isinstance(one, Tensor) and one.dim() > 0]
        # A new phase may clear moments with the count.
        if count < self._count - 0.5 and any(bool(one.any()) for one in moments):
            text = (
                f"the loaded state has taken {self._count:.0f} steps, and the first step begins "
                f"with {count:.0f}"
            )
            yield Alarm("schedule", "count", text, size=self._count - count)

    def _is_of_schedule(self, rate: float, optimizer: Any) -> bool:
        """Whether a schedule may have set this rate: its first one, or its last. A loop that sets
        another one after a load does so on purpose, as after a plateau."""
        return any(
            rate in getattr(one, name, ())
            for one in self._schedules(optimizer)
            for name in ("base_lrs", "_last_lr")
            if id(one) in self._before or self._has_first_rates(one)
        )

    def _begun_schedule(self, optimizer: Any) -> str:
        """The name of the schedule, if all of them are at their beginning."""
        schedules = self._schedules(optimizer)
        names = [type(one).__name__ for one in schedules if getattr(one, "last_epoch", 1) == 0]
        # Otherwise there was none at the save, or the loop begins another one on purpose.
        is_same = all(map(self._has_first_rates, schedules)) and None not in self._first_rates
        return names[0] if is_same and names and len(names) == len(schedules) else ""

    def _has_first_rates(self, schedule: Any) -> bool:
        return self._first_rates.issuperset(getattr(schedule, "base_lrs", ()))

    def left_by(self, optimizer: Any) -> Alarm | None:
        """An alarm if this optimizer takes its first step instead of the one with the loaded
        state, and has none."""
        is_alike = self._ids == _ids(optimizer)
        if self._steps or not is_alike or _states(optimizer) or not self._count:
            return None
        text = (
            f"a state with {self._count:.0f} steps was loaded into an optimizer that takes no "
            "step, and another one takes the first step without any state"
        )
        return Alarm("schedule", "other", text, size=self._count)


def _differ(value: float, expected: float) -> bool:
    return abs(value - expected) > NOISE * abs(expected)


def rates(optimizer: Any) -> list[Any]:
    """The learning rate of each group of an optimizer; None for one that is no number."""
    values = [group.get("lr") for group in optimizer.param_groups]
    return [value if isinstance(value, float) else None for value in values]


def _ids(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _held(optimizer: Any) -> list[Any]:
    """The states of the parameters that the optimizer updates. With ZeRO 3 it has its parameters
    only while it steps."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = parameters or list(optimizer.state)
    return [optimizer.state[p] for p in parameters if p in optimizer.state]


def _states(optimizer: Any) -> int:
    """How many parameters have a state."""
    return sum(bool(state) for state in _held(optimizer))


def steps_of(optimizer: Any) -> float:
    """The steps that the optimizer has taken, as its state says; 0 if the host does not know."""
    counts = [state.get("step") for state in _held(optimizer) if isinstance(state, dict)]
    host_counts = [
        float(count)
        for count in counts
        if isinstance(count, (int, float))
        or (isinstance(count, Tensor) and count.device.type == "cpu" and count.numel() == 1)
    ]
    return max(host_counts, default=0.0)
