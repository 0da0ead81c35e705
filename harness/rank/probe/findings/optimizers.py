"""What a rank's optimizers have, and what is trained: parameters that get gradients, are in no
optimizer that steps, and stay as they are."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from harness.rank import events
from harness.rank.training.layouts import local

SEVERAL = 3
"""After so many steps of others, an optimizer has stepped, too, unless it is forgotten."""

LATER = 8
"""Further steps of others that an optimizer may wait for: a WGAN's generator steps after five of
its critic."""

Named = Iterable[tuple[str, Any]]
"""Parameters with their names."""


class Optimizers:
    """All optimizers of a process, and the parameters that they do not have, or never step.

    Guard's check ``unheld`` looks for the same fault while a training runs. Some code steps weights
    without an optimizer of torch, or steps copies of them. So a parameter counts only if its values
    never change.
    """

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.any_made = False
        """Whether an optimizer was made."""
        self._first: dict[int, tuple[str, Any, Any]] = {}
        """By id, parameters that no optimizer has or has stepped: name, tensor, first values."""
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps = 0
        self._later = 0
        """Steps that were not recorded any more."""
        self._known: set[int] = set()
        """The ids of the model's parameters."""

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""

        def note(event: events.NewOptimizer) -> None:
            self.any_made = True
            self._optimizers.add(event.owner)

        events.instrument.on(events.NewOptimizer, after=note)

    def look(self, optimizer: Any, parameters: Named) -> None:
        """Note the parameters with a gradient that no optimizer has or has stepped, before a step
        of this optimizer."""
        self._stepped.add(optimizer)
        self._steps += 1
        pairs = list(parameters)
        self._known |= {id(parameter) for _, parameter in pairs}
        tensors = list(self._tensors())
        held_ids = {id(tensor) for tensor in self._tensors(self._stepped)}
        self._first = {key: value for key, value in self._first.items() if key not in held_ids}
        others = [each for each in tensors if id(each) not in self._known]
        copies = max((each.numel() for each in others if each.grad is not None), default=0)
        for name, parameter in pairs:
            key, gradient = id(parameter), parameter.grad
            if key in held_ids or key in self._first or gradient is None:
                continue
            if parameter.numel() <= copies:
                continue  # a copy of it may be stepped, or many copies in one tensor
            if float(local(gradient).norm()) > 0:
                self._first[key] = name, parameter, local(parameter).detach().clone()

    def pass_by(self, optimizer: Any) -> None:
        """Note a step after the last one that is recorded."""
        self._stepped.add(optimizer)
        self._steps, self._later = self._steps + 1, self._later + 1

    def awaits(self) -> bool:
        """Whether an optimizer that has not stepped, though its parameters get gradients, may step
        soon."""
        if self._steps < SEVERAL or self._later >= LATER:
            return False
        stepped_ids = {id(tensor) for tensor in self._tensors(self._stepped)}
        held_ids = {id(tensor) for tensor in self._tensors()}
        return any(key in held_ids - stepped_ids for key in self._first)

    def report(self) -> dict[str, Any]:
        """``unheld``: the parameters that no optimizer has by now and that have not moved, with
        their sizes. ``strangers``: how many tensors without a gradient the optimizers have, which
        are not the model's. ``empty``: whether the optimizers have no tensor at all. ``unstepped``:
        the parameters of optimizers that never step, and the number of the others' steps."""
        import torch

        tensors = list(self._tensors())
        held_ids = {id(tensor) for tensor in tensors}
        still = {
            key: (name, parameter.numel())
            for key, (name, parameter, first) in self._first.items()
            if torch.equal(local(parameter).detach(), first)
        }
        unheld = {name: size for key, (name, size) in still.items() if key not in held_ids}
        stepped_ids = {id(tensor) for tensor in self._tensors(self._stepped)}
        idle = [n for key, (n, _) in still.items() if key in held_ids - stepped_ids]
        unstepped = (idle, self._steps) if self._steps >= SEVERAL else ([], 0)
        strangers = [each for each in tensors if id(each) not in self._known and each.grad is None]
        return {
            "unheld": unheld,
            "strangers": len(strangers),
            "empty": not tensors,
            "unstepped": unstepped,
        }

    def _tensors(self, optimizers: Iterable[Any] | None = None) -> Iterator[Any]:
        for optimizer in self._optimizers if optimizers is None else optimizers:
            for group in getattr(optimizer, "param_groups", ()):
                yield from group["params"]
