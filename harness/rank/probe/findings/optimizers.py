"""What a rank's optimizers have, and what is trained: parameters that get gradients, are in no
optimizer, and stay as they are."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from harness.rank import events
from harness.rank.training.layouts import local

Named = Iterable[tuple[str, Any]]
"""Parameters with their names."""


class Optimizers:
    """All optimizers of a process, and the parameters that they do not have.

    Guard's check ``unheld`` looks for the same fault while a training runs. Some code steps weights
    without an optimizer of torch, or steps copies of them. So a parameter counts only if its values
    never change.
    """

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.any_made = False
        """Whether an optimizer was made."""
        self._first: dict[int, tuple[str, Any, Any]] = {}
        """By id, parameters that no optimizer has: name, tensor, first values."""
        self._known: set[int] = set()
        """The ids of the model's parameters."""

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""

        def note(event: events.NewOptimizer) -> None:
            self.any_made = True
            self._optimizers.add(event.owner)

        events.instrument.on(events.NewOptimizer, after=note)

    def look(self, parameters: Named) -> None:
        """Note the parameters with a gradient that no optimizer has, before a step."""
        pairs = list(parameters)
        self._known |= {id(parameter) for _, parameter in pairs}
        tensors = list(self._tensors())
        held_ids = set(map(id, tensors))
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

    def report(self) -> dict[str, Any]:
        """``unheld``: the parameters that no optimizer has by now and that have not moved, with
        their sizes. ``strangers``: how many tensors without a gradient the optimizers have, which
        are not the model's. ``empty``: whether the optimizers have no tensor at all."""
        import torch

        tensors = list(self._tensors())
        held_ids = {id(tensor) for tensor in tensors}
        unheld = {
            name: parameter.numel()
            for key, (name, parameter, first) in self._first.items()
            if key not in held_ids and torch.equal(local(parameter).detach(), first)
        }
        strangers = [each for each in tensors if id(each) not in self._known and each.grad is None]
        return {"unheld": unheld, "strangers": len(strangers), "empty": not tensors}

    def _tensors(self) -> Iterator[Any]:
        for optimizer in self._optimizers:
            for group in getattr(optimizer, "param_groups", ()):
                yield from group["params"]
