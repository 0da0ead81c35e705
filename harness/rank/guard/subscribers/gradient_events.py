"""What a loop does to gradients between a backward and the step: clips, unscales, clears."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ... import events
from ...events import Clip, EngineClip, Unscale, WrapperUnscale, ZeroGrad
from ..trainings.training import Training
from .watch import Watch


class GradientEvents(Watch):
    """Lets trainings sample gradients before they are changed, and notes by what."""

    def subscribe(self) -> None:
        """Subscribe to what changes gradients."""

        def unscale_group(event: WrapperUnscale) -> None:
            training = self.trainings.of(event.owner.optimizer)
            if training is not None and training.role.inner_steps is not None:
                training.take_used()

        on, guarded, is_armed = events.instrument.on, self.fence.guarded, self.fence.is_armed
        for kind in (Clip, EngineClip):
            on(kind, before=guarded(self._clip), after=guarded(self._clipped), when=is_armed)
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
        if any(had_gradients) or is_open:
            self.losses.cleared()
