"""Saves and loads of checkpoints, and the trainings that they concern."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...events import (
    AsyncSave,
    Checkpoint,
    FilledState,
    Load,
    LoadedState,
    PlannedLoad,
    PlannedSave,
    RestoredTraining,
    Save,
    SavedTensors,
    instrument,
)
from ...training.deepspeed import weights_of
from ...training.layouts import local
from ..checks.views import named
from ..posting.posts import Alarm
from ..states.training_states import FILLED, WRITTEN, leaves, value_sum
from ..trainings.training import Training
from .subscriber import Subscriber

DEEP, WIDE = 4, 64
"""How far an object that is saved is searched: limits of time."""


class Checkpoints(Subscriber):
    """Follows the saves and loads of a process."""

    _is_saving = False
    _engine_sums: Sequence[int] = []
    """Of the weights of DeepSpeed's engine before a load."""
    _handed: Mapping[str, tuple[Any, int]] = {}
    """The tensors that a thread is to save, by their paths, with the sums of their bits."""

    def subscribe(self) -> None:
        """Subscribe to what loads and saves."""

        def begin_load(event: LoadedState) -> None:
            training = self.trainings.of(event.owner)
            if training is not None:
                training.states.begin_load(event.owner)

        def end_load(event: LoadedState) -> None:
            training = self.trainings.of(event.owner)
            if training is not None:
                model, states = event.by_names
                if isinstance(model, torch.nn.Module):
                    training.states.note_set(event.owner, model, states)
                training.loaded(self.schedules.of)
                self.rows.restart(goes_on=True)

        def note_planned_load(event: PlannedLoad) -> None:
            for training in self.trainings:
                training.states.is_filled = True

        def note_filled(event: FilledState) -> None:
            for training in self.trainings[:1]:
                training.states.note_file(FILLED, training.steps, event.path, event.state)

        on, guarded, is_alive = instrument.on, self.fence.guarded, self.fence.is_alive
        on(LoadedState, before=guarded(begin_load), when=is_alive)
        on(LoadedState, after=guarded(end_load), when=is_alive)
        on(FilledState, after=guarded(note_filled), when=is_alive)
        on(PlannedLoad, after=guarded(note_planned_load), when=is_alive)
        for load in (Load, RestoredTraining):
            on(load, before=guarded(self._begin_load), when=is_alive)
            on(load, after=guarded(self._note_load), when=is_alive)
        for save in (Save, PlannedSave, SavedTensors):
            on(save, around=self._save, when=is_alive)
        on(AsyncSave, before=guarded(self._hand_over), when=is_alive)

    def _save(self, event: Save, call: Callable[[], Any]) -> Any:
        if threading.current_thread() is not self.fence.thread:
            self.fence.call(self._compare_handed, event)
            return call()
        if self._is_saving:  # one calls the other
            return call()
        self._is_saving = True
        self.fence.call(self._note_save, event)
        try:
            return call()
        finally:
            self._is_saving = False

    def _hand_over(self, event: AsyncSave) -> None:
        values = leaves(event.values[0]).items()
        self._handed = {
            key: (weakref.ref(one), int(value_sum(local(one))))
            for key, one in values
            if isinstance(one, Tensor)
        }

    def _compare_handed(self, event: Save) -> None:
        """Compare what a thread saves with what it got: it must be a copy, as steps go on."""
        changed = [
            key
            for key, one in (leaves(event.state) if self._handed else {}).items()
            for tensor, before in [self._handed.get(key, (None, 0))]
            if tensor is not None and tensor() is one and int(value_sum(local(one))) != before
        ]
        if changed and self.trainings:
            text = (
                f"a thread writes other values of {named(changed)} than those that were saved: the "
                "training has changed them since, as nobody has copied them"
            )
            alarm = Alarm("checkpoints", "late", text, size=float(len(changed)))
            self.trainings[0].alarms.append(alarm)
            self._handed = {}

    def _note_save(self, event: Save) -> None:
        """Note what is trained, and what is written, if it is a checkpoint with an optimizer."""
        first = self.trainings[0] if self.trainings else None
        if first is not None and event.is_by_torch:
            first.states.note_parts(first.steps, event.path, event.state)
        has_optimizer = not event.is_by_torch or _has_optimizer(event.state)
        if event.is_by_torch or isinstance(event, SavedTensors):
            for training in self.trainings:
                training.note_file(event.path, event.state)
        if isinstance(event, SavedTensors) or not has_optimizer:
            return
        content = event.state if event.is_by_torch else None
        begun, orders = self.rows.begun(), self.rows.orders()
        for training in _concerned(event, self.trainings):
            training.save(event.path, content, begun, orders)
        if first is not None and event.is_distributed:
            first.states.note_file(WRITTEN, first.steps, event.path, event.state)

    def _begin_load(self, event: Load) -> None:
        self._engine_sums = _sums(event.owner) if event.is_by_engine else []

    def _note_load(self, event: Load) -> None:
        """Note that a package has loaded a checkpoint of the whole training."""
        if not event.has_loaded:
            return
        for training in _concerned(event, self.trainings):
            loaded = training.states.loaded
            if event.of_engine or loaded is None or not loaded.path:  # the engine knows it better
                optimizer, promised = training.optimizer(), event.has_optimizer
                training.states.load(training.steps, optimizer, event.path, promised)
                if event.is_by_engine and training.states.loaded is not None:
                    is_kept = self._engine_sums == _sums(event.owner)
                    training.states.loaded.numbers = {"by_engine": True, "kept": is_kept}
        self.rows.restart(goes_on=True)


def _sums(engine: Any) -> list[int]:
    return [int(value_sum(one)) for one in weights_of(engine)]


def _concerned(event: Checkpoint, trainings: Sequence[Training]) -> list[Training]:
    """All trainings, or that of DeepSpeed's engine."""
    optimizer, ids = event.owner if event.of_engine else None, set()
    while optimizer is not None:
        ids.add(id(optimizer))
        optimizer = getattr(optimizer, "optimizer", None)
    pairs = [(one.optimizer(), one) for one in trainings]
    return [one for held, one in pairs if held is not None and (not ids or id(held) in ids)]


def _has_optimizer(value: Any, depth: int = DEEP) -> bool:
    """Whether an object contains the state of an optimizer."""
    if isinstance(value, Mapping):
        if "param_groups" in value:
            return True
        values: Sequence[Any] = list(value.values())[:WIDE]
    elif isinstance(value, (list, tuple)):
        values = value[:WIDE]
    else:
        return False
    return depth > 0 and any(_has_optimizer(one, depth - 1) for one in values)
