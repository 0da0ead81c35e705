"""Saves and loads of checkpoints, and the trainings that they concern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..events import Checkpoint, FilledState, Load, Save, SavedTensors
from .posts import Pass
from .training import Training
from .training_states import FILLED, WRITTEN

DEEP, WIDE = 4, 64
"""How far an object that is saved is searched."""


def note_save(event: Save, trainings: Sequence[Training], begun: Sequence[Pass]) -> None:
    """Note what is trained, and what is written, if it is a checkpoint with an optimizer."""
    if trainings and event.is_by_torch:
        trainings[0].states.note_parts(trainings[0].steps, event.path, event.state)
    has_optimizer = not event.is_by_torch or _has_optimizer(event.state)
    if event.is_by_torch or isinstance(event, SavedTensors):
        for training in trainings:
            training.note_file(event.path, event.state, event.is_by_torch and has_optimizer)
    if isinstance(event, SavedTensors) or not has_optimizer:
        return
    for training in _concerned(event, trainings):
        training.save(event.path, event.state if event.is_by_torch else None, begun)
    if event.is_distributed and trainings:
        states, step = trainings[0].states, trainings[0].steps
        states.note_file(WRITTEN, step, event.path, event.state)


def note_filled(event: FilledState, trainings: Sequence[Training]) -> None:
    """Note what torch has read from a distributed checkpoint."""
    if trainings:
        states, step = trainings[0].states, trainings[0].steps
        states.note_file(FILLED, step, event.path, event.state)


def note_load(event: Load, trainings: Sequence[Training]) -> None:
    """Note that a package has loaded a checkpoint of the whole training."""
    for training in _concerned(event, trainings) if event.has_loaded else ():
        loaded = training.states.loaded
        if event.of_engine or loaded is None or not loaded.path:  # the engine knows it better
            optimizer, promised = training.optimizer(), event.has_optimizer
            training.states.load(training.steps, optimizer, event.path, promised)


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
