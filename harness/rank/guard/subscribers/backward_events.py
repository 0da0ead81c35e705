"""The backwards of this process: the first one of a step that is due begins its check. And what a
loop does to gradients between a backward and the step: it clips, unscales and clears them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from ... import events
from ...events import (
    Backward,
    Clip,
    EngineClip,
    GraphBackward,
    NormedClip,
    StageBackward,
    StageGradients,
    Unscale,
    WrapperUnscale,
    ZeroGrad,
)
from ...training.callers import place_of_caller
from ...training.parameters import Modules
from ...training.torch_layouts import inner_optimizer
from ..facts import cleared_by_lightning
from ..process import captures
from ..trainings.training import Training
from .subscriber import Subscriber


class BackwardEvents(Subscriber):
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


class GradientEvents(Subscriber):
    """Lets trainings sample gradients before they are changed, and notes by what."""

    def subscribe(self) -> None:
        """Subscribe to what changes gradients."""

        def unscale_group(event: WrapperUnscale) -> None:
            training = self.trainings.of(event.owner.optimizer)
            if training is not None and training.role.inner_steps is not None:
                training.take_used()

        def take_used(event: NormedClip) -> None:
            for training, _ in self._holders(event):
                if training.armed:
                    training.take_used()

        on, guarded, is_armed = events.instrument.on, self.fence.guarded, self.fence.is_armed
        for kind in (Clip, EngineClip):
            on(kind, before=guarded(self._clip), after=guarded(self._clipped), when=is_armed)
        on(NormedClip, before=guarded(take_used), when=is_armed)
        on(Clip, before=guarded(self._note_clip), when=self.fence.is_new)
        on(Unscale, before=guarded(self._unscale), when=is_armed)
        on(WrapperUnscale, before=guarded(unscale_group), when=is_armed)
        on(ZeroGrad, before=guarded(self._clear), when=is_armed)

    def _holders(self, event: Clip) -> Iterator[tuple[Training, set[int]]]:
        """The trainings that have parameters of a clipping, and the ids of all of these."""
        ids = {id(parameter) for parameter in event.parameters}
        return ((one, ids) for one in self.trainings if one.model.holds(ids))

    def _clip(self, event: Clip) -> None:
        for training, ids in self._holders(event):
            if training.armed:
                training.take_used()
                step, watched = training.checked, training.model.watched
                step.clips.begin(ids, event.norm_type, watched, step.numbers)

    def _clipped(self, event: Clip) -> None:
        for training, _ in self._holders(event):
            if training.armed:
                training.checked.clips.end(event.value, event.max_norm)

    def _note_clip(self, event: Clip) -> None:
        for training, _ in self._holders(event):
            training.note_clip(event.max_norm, self.trainings.backwards)

    def _unscale(self, event: Unscale) -> None:
        training = self.trainings.of(event.values[0])
        if training is not None:
            training.take_used()
            training.checked.clips.unscale(event.owner, training.armed)

    def _clear(self, event: ZeroGrad) -> None:
        if isinstance(event.owner, torch.nn.Module):
            ids = {id(parameter) for parameter in event.owner.parameters()}
        else:
            ids = {id(p) for group in event.owner.param_groups for p in group["params"]}
        trainings = [one for one in self.trainings if one.model.holds(ids)]
        is_only_one, backwards = len(self.trainings) == 1, self.trainings.backwards
        had_gradients = [one.cleared(is_only_one, backwards) for one in trainings]
        is_open = any(one.armed and not one.checked.is_sampled for one in trainings)
        if any(had_gradients) and (alarm := cleared_by_lightning()):
            trainings[0].alarms.append(alarm)
        if any(had_gradients) or is_open:
            self.losses.cleared()
