"""What a script saves and evaluates is what it has trained.

A file may have an average, an earlier state, or weights that the loop has clamped since the step.
But weights in which no step shows, although steps have moved the model, are those of an average
that has not begun, or of a copy that nobody updates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.rank import events
from harness.rank.probe.parameters import NamedParameters, local, plain

SAVED, EVALUATED = "a checkpoint has the first weights", "an evaluation uses the first weights"
"""How the notes begin: by these words a recorded note is recognised."""

DEEP = 4
"""How far a saved object is searched."""

OTHERS = re.compile(r"ema|averag|shadow|swa|teacher|target|ref|init|best|old|prev", re.IGNORECASE)
"""Matches the names of weights that need not be those that were trained."""

Weights = Mapping[str, Any]
"""Tensors by the names of parameters."""


class Saves:
    """Compares what is saved and evaluated with the weights after the last step, and with those
    before the first."""

    def __init__(self, names: NamedParameters) -> None:
        self._names = names
        self._first: Weights = {}
        self._last: Weights = {}
        self._steps = 0
        self._evaluated = 0
        """After how many steps an evaluation was looked at."""
        self._files: dict[str, tuple[int, str]] = {}
        """By file, after how many steps it was written, and where it has the first weights; empty
        if it has what was trained."""
        self._notes: list[str] = []

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""
        on = events.instrument.on
        on(events.Gradients, before=self._before_step)
        on(events.Step, after=self._after_step)
        on(events.Save, before=self._save)
        on(events.SavedTensors, before=self._save)

    def report(self) -> list[str]:
        """A line on the last checkpoint, and a line on an evaluation, if they are wrong."""
        count = max((steps for steps, _ in self._files.values()), default=0)
        places = [place for steps, place in self._files.values() if steps == count]
        if places and all(places):
            self._notes.insert(
                0,
                f"{SAVED} ({places[0]}), although {count} steps have moved them: has an average "
                "not begun? No fault if it is to have the weights of the beginning",
            )
        return self._notes

    def evaluate(self) -> None:
        """The model is called without training: look at its weights, once after each step."""
        if self._evaluated == self._steps or self._notes:
            return
        self._evaluated = self._steps
        if self._is_of_beginning(dict(self._trained())):
            self._notes.append(
                f"{EVALUATED}, although {self._steps} steps have moved them: has an average "
                "not begun? No fault if it is to have the weights of the beginning"
            )

    def _before_step(self, event: events.Gradients) -> None:
        if not self._first:
            self._first = _copies(dict(self._trained()))

    def _after_step(self, event: events.Step) -> None:
        if self._first and not event.skips:
            self._steps += 1
            self._last = _copies(dict(self._trained()))

    def _trained(self) -> Iterator[tuple[str, Any]]:
        yield from ((n, p) for n, p in self._names.items() if p.requires_grad)

    def _save(self, event: events.Save) -> None:
        if not self._last or event.of_engine:
            return
        places = {
            where: self._is_of_beginning(weights)
            for where, mapping in _mappings(event.state)
            if (weights := _matching(mapping, self._last))
        }
        if places:
            first_places = (where for where, is_first in places.items() if is_first)
            unnamed = (where for where in first_places if not OTHERS.search(where))
            self._files[event.path or f"file {len(self._files)}"] = self._steps, next(unnamed, "")

    def _is_of_beginning(self, weights: Weights) -> bool:
        """Whether weights are those before the first step, and were moved since."""
        moved_names = [
            name
            for name, first in self._first.items()  # another model may be trained later
            if name in self._last and not _are_equal(self._last[name], first)
        ]
        weights = {name: weights[name] for name in moved_names if name in weights}
        return bool(weights) and all(
            _are_equal(local(weight), self._first[name]) for name, weight in weights.items()
        )


def _copies(weights: Weights) -> Weights:
    return {name: local(weight).detach().clone() for name, weight in weights.items()}


def _are_equal(tensor: Any, other: Any) -> bool:
    import torch

    return tensor.shape == other.shape and torch.equal(
        tensor.detach().cpu(), other.to("cpu", tensor.dtype)
    )


def _mappings(value: Any, where: str = "", depth: int = DEEP) -> Iterator[tuple[str, Weights]]:
    """The mappings in a saved object that have tensors, with their places."""
    import torch

    if not isinstance(value, Mapping) or not depth:
        return
    names = [name for name in value if isinstance(name, str)]
    tensors = {plain(n): value[n] for n in names if isinstance(value[n], torch.Tensor)}
    if tensors:
        yield where or "the file", tensors
    for name in names:
        yield from _mappings(value[name], f"{where}.{name}".strip("."), depth - 1)


def _matching(mapping: Weights, weights: Weights) -> Weights:
    """The tensors of a mapping by the names of ``weights``, whatever precedes both; empty unless it
    has all of them."""
    first_name = min(weights)
    for key in mapping:
        if key == first_name or key.endswith(f".{first_name}") or first_name.endswith(f".{key}"):
            more, less = key.removesuffix(first_name), first_name.removesuffix(key)
            keys = {
                name: more + name if key.endswith(first_name) else name.removeprefix(less)
                for name in weights
            }
            if all(
                renamed in mapping and mapping[renamed].shape == weights[name].shape
                for name, renamed in keys.items()
            ):
                return {name: mapping[renamed] for name, renamed in keys.items()}
    return {}
