"""The optimizers of this process that are watched, each as a training."""

from __future__ import annotations

import weakref
from typing import Any

from ... import events
from ...events import Joined, NewOptimizer, NewScaler, ScalerStep, Step
from ...training.live_objects import objects
from ..data.rows import Rows
from ..fence import Fence
from ..sampling.optimizers import is_constructed
from ..states.schedules import Schedules
from .training import UNNUMBERED, Training

MOST_OPTIMIZERS = 8
"""Optimizers that are checked: a loop that steps in its backward has one for each parameter, six in
the right loop ``optimizers.steps_in_the_backward``."""


class Trainings(list[Training]):
    """The trainings of this process, in the order of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = 0
        """How many were constructed."""
        self.began_late = False
        """Whether an optimizer, which was made before ``guard()``, stepped before it was known."""
        self.backwards = 0
        """How many began in this process."""
        self.scaler: Any = None
        """The loss scaler that was constructed last."""
        self._strangers: weakref.WeakSet[Any] = weakref.WeakSet()

    def of(self, optimizer: Any) -> Training | None:
        """The training of an optimizer, if it is watched."""
        return next((one for one in self if one.optimizer() is optimizer), None)

    def subscribe(self, fence: Fence, rows: Rows) -> None:
        """Subscribe to what constructs optimizers and loss scalers."""

        def add(event: NewOptimizer) -> None:
            self._add(event.owner)
            rows.restart()

        def note_scaler(event: NewScaler) -> None:
            self.scaler = event.owner

        def note_join(event: Joined) -> None:
            for training in self:
                training.counts.joined = training.steps

        events.instrument.on(NewOptimizer, after=fence.guarded(add))
        events.instrument.on(NewScaler, after=fence.guarded(note_scaler))
        events.instrument.on(Joined, after=fence.guarded(note_join), when=fence.is_alive)

    def _add(self, optimizer: Any) -> None:
        events.instrument.refresh()  # packages were imported since torch was
        self[:] = (one for one in self if one.steps or one.optimizer())
        if len(self) < MOST_OPTIMIZERS:
            self.append(Training(optimizer, self.optimizers, self.backwards))
        self.optimizers += 1

    def look_for_strangers(self, fence: Fence, rows: Rows, schedules: Schedules) -> None:
        """Find what a script made before it called ``guard()``: if it is clear which optimizers
        train, they are watched from their first step on, and others from their second one."""
        live = objects((OPTIMIZER, SCHEDULE, SCALER))
        scalers, optimizers = live.get(SCALER, []), list(filter(is_constructed, live[OPTIMIZER]))
        fresh = _fresh(optimizers) if len(scalers) <= 1 else []
        waiting = (one for one in optimizers if not any(one is each for each in fresh))
        self._strangers = weakref.WeakSet(waiting)
        for schedule in live.get(SCHEDULE, []):
            schedules.new(schedule)
        self.extend(Training(one, UNNUMBERED) for one in fresh)
        if fresh and scalers:
            (self.scaler,) = scalers

        def meet(event: Step) -> None:
            if event.owner in self._strangers:
                self._strangers.discard(event.owner)
                self.began_late = True
                self._add(event.owner)
                rows.restart()

        def meet_scaler(event: ScalerStep) -> None:
            if event.values[0] in self._strangers:
                self.scaler = event.owner

        def has_strangers() -> bool:
            return bool(self._strangers)

        events.instrument.on(Step, after=fence.guarded(meet), when=has_strangers)
        events.instrument.on(ScalerStep, before=fence.guarded(meet_scaler), when=has_strangers)

    def give_number(self, training: Training) -> None:
        """Number an optimizer that was made before ``guard()``: by their first steps, as these are
        in one order on all ranks."""
        if training.number == UNNUMBERED:
            training.number = self.optimizers
            self.optimizers += 1
            self.sort(key=lambda one: (one.number == UNNUMBERED, one.number))


OPTIMIZER = "torch.optim.optimizer.Optimizer"
SCHEDULE = "torch.optim.lr_scheduler.LRScheduler"
SCALER = "torch.amp.grad_scaler.GradScaler"

FEW = 4
"""More optimizers that have not stepped are those of a notebook's earlier cells: a test has twenty,
which took the place of the one that trains."""


def _fresh(optimizers: list[Any]) -> list[Any]:
    """Those that have not stepped; none if a notebook may have some of them from earlier cells."""
    # One whose constructor failed has no groups, or no state.
    complete = (one for one in optimizers if vars(one).get("param_groups"))
    fresh = [one for one in complete if not vars(one).get("state", True)]
    ids = [id(p) for one in fresh for group in one.param_groups for p in group["params"]]
    return fresh if len(fresh) <= FEW and len(set(ids)) == len(ids) else []
