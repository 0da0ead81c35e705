"""The backwards of this process: the first one of a step that is due begins its check."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ... import events
from ...events import Backward, GraphBackward, StageBackward, StageGradients
from ...training.parameters import Modules
from ...training.torch_layouts import inner_optimizer
from ..callers import place_of_caller
from ..process import captures
from .watch import Watch


class BackwardEvents(Watch):
    """Tells trainings, losses, rows and collectives that a backward begins and ends."""

    def subscribe(self) -> None:
        """Subscribe to the ways in which a backward begins."""
        on, fence = events.instrument.on, self.fence
        for kind in (Backward, GraphBackward, StageBackward):
            on(kind, around=self._run, when=fence.is_alive)
        # What a schedule writes is no edit of the loop.
        on(StageGradients, after=fence.guarded(lambda _: self._end()), when=fence.is_armed)

    def _run(self, event: Any, call: Callable[[], Any]) -> Any:
        if self.collectives.in_backward:  # one calls the other, and checkpoints are reentrant
            return call()
        self.collectives.in_backward = True
        self.fence.call(self._begin, event.owner, event.gradient)
        try:
            return call()
        finally:
            self.collectives.in_backward = False
            if self.fence.is_armed():
                self.fence.call(self._end)

    def _begin(self, root: Any, gradient: Any) -> None:
        if not self.fence.is_alone():
            return
        self.trainings.backwards += 1
        self.rows.backward()
        self.collectives.backward_begins(root)
        is_scalar = isinstance(root, torch.Tensor) and root.numel() == 1
        self._arm(gradient is not None and not is_scalar)
        for training in self.trainings:
            training.go_on()
        if self.fence.is_armed():
            place = place_of_caller()
            cleared = [one.begin_backward(place) for one in self.trainings if one.armed]
            if any(cleared):
                self.losses.cleared()
            if isinstance(gradient, (list, tuple)) and len(gradient) == 1:
                (gradient,) = gradient
            self.losses.backward(root, self.trainings.scaler, gradient)
        elif any(one.skips.are_many for one in self.trainings):
            self.losses.note_root(root)

    def _arm(self, goes_on: bool) -> None:
        """Arm what is due. ``goes_on``: the backward begins with gradients of another rank."""
        due = [one for one in self.trainings if one.due and not one.armed]
        if not due or captures():
            return
        optimizers = [one.optimizer() for one in self.trainings]
        parameter_ids = {
            id(p) for one in optimizers if one for g in one.param_groups for p in g["params"]
        }

        @cache
        def modules() -> Modules:
            events.instrument.refresh()  # a package may have wrapped the optimizer by now
            return Modules(goes_on)

        inner = {id(inner_optimizer(one)) for one in optimizers if one}
        for training in due:
            training.role.is_inner = id(training.optimizer()) in inner
            if training.role.is_inner:
                continue
            others = [one for one in optimizers if one and one is not training.optimizer()]
            training.role.is_shared = any(map(training.shares, others))
            training.arm(parameter_ids, modules, self.fence.guarded)

    def _end(self) -> None:
        for training in self.trainings:
            if training.armed:
                training.checked.samples.end_backward()
