"""Samples of the gradients of a checked step: those that this rank computes, and those that the
optimizer uses, at the same positions."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...training.layouts import local
from ...training.parameters import Watched
from ..posting.posts import GradientFacts, Post
from .samples import SIZE, Positions, appended, joined, largest, partial_ranks, version

NO_GRADIENT = (0, 0)
"""What stands for a gradient that is not there."""


class GradientSamples:
    """The gradients of the parameters ``numbers``, which a check looks at."""

    def __init__(self, watched: Sequence[Watched], numbers: Sequence[int], check: int) -> None:
        self._watched, self._numbers = watched, numbers
        self.positions: dict[int, Positions] = {}
        self._starts: dict[int, int] = {}
        """By the number of a parameter, where its sample is in ``computed``."""
        self._size = 0
        for number in numbers:
            positions = Positions.of(watched[number].described.numel, check)
            self.positions[number], self._starts[number] = positions, self._size
            self._size += positions.count
        self.forget()

    def forget(self) -> None:
        """Forget what was sampled."""
        self.facts = GradientFacts()
        """What a post says of the samples."""
        self.forget_computed()
        self.used: Tensor | None = None
        self.sizes: Tensor | None = None
        """The largest value of each gradient that the optimizer uses."""
        self._taken: set[int] = set()
        """The parameters whose gradients, as the optimizer uses them, were looked at."""
        self._places: list[tuple[int, int, int]] = []
        self.used_left: Tensor | None = None
        """These samples, where ``used`` has those of the same parameters."""

    def forget_computed(self) -> None:
        """Forget the gradients that were computed: they were cleared."""
        self.facts.partial, self.facts.stale = {}, False
        self.computed: Tensor | None = None
        self.types: dict[int, str] = {}
        self._unusable: set[int] = set()
        """The parameters with gradients that cannot be sampled, such as sparse ones."""
        self._marks: dict[int, tuple[int, int]] = {}
        self._left: dict[int, Tensor] = {}
        """Samples of the gradients that were there when the step began, by the number of a
        parameter."""

    def add_computed(self, number: int, gradient: Any) -> None:
        """Sample a gradient that this rank computed, before any reduction."""
        if self.used is not None:
            return  # a closure is called again, or a loop clips in each micro-batch
        if gradient.layout is not torch.strided:
            self._unusable.add(number)
            return
        entry, positions = self._watched[number], self.positions[number]
        parts = partial_ranks(gradient) * entry.described.stages
        if parts > 1:
            self.facts.partial[str(number)] = parts
        gradient = entry.share.computed(local(gradient))
        if self.computed is None:
            self.computed = torch.zeros(self._size, dtype=torch.float32, device=gradient.device)
        is_whole = gradient.numel() == entry.described.numel
        if not is_whole or gradient.device != self.computed.device:
            self._unusable.add(number)
            return
        start = self._starts[number]
        slot = self.computed[start : start + positions.count]
        slot.add_(positions.values(gradient))  # another micro-batch adds to it
        self.types[number] = str(gradient.dtype)[len("torch.") :]

    def note_left(self, leftovers: Leftovers) -> None:
        """Sample the gradients that are there when the step begins."""
        for number in self._numbers:
            entry = self._watched[number]
            left = leftovers.sample(entry, self.positions[number])
            if left is not None:
                self._left[number] = left
                self.facts.stale = self.facts.stale or leftovers.is_noted(number, entry)

    def have_lost_one(self) -> bool:
        """Whether a parameter had a gradient after the last backward, and has none now. What steps
        a copy of the parameter takes its gradients itself."""
        number = next(iter(sorted(self.types)), None)
        if number is None:
            return False
        entry = self._watched[number]
        is_usual = entry.hooked is entry.parameter and not (entry.share.used or entry.share.master)
        was_there = self._marks.get(number, NO_GRADIENT) != NO_GRADIENT
        return is_usual and was_there and entry.parameter.grad is None and self.used is None

    def end_backward(self) -> None:
        """Note which gradients there are after a backward, and how often they were written."""
        self._marks = {number: self._mark(number) for number in self.types}

    def _mark(self, number: int) -> tuple[int, int]:
        entry = self._watched[number]
        gradient = None if entry.share.used else local(entry.parameter.grad)
        return NO_GRADIENT if gradient is None else (id(gradient), version(gradient))

    def take_used(self, optimizer: Any, is_of_wrapper: bool) -> None:
        """Sample the gradients that the optimizer will use. A wrapper reduces them into tensors of
        its own, group by group."""
        views, gradients = [], dict[int, Tensor]()
        if not is_of_wrapper:
            self.facts.edited = any(self._mark(n) != mark for n, mark in self._marks.items())
        for number in sorted(self.types.keys() - self._taken):
            entry, positions = self._watched[number], self.positions[number]
            gradient = entry.gradient(optimizer)
            described = entry.described
            if gradient is None:
                if not is_of_wrapper:
                    self._note_without(number)
                continue
            self._taken.add(number)
            parts = partial_ranks(gradient)
            gradient = local(gradient)
            begin_number, end_number = positions.within(described.begin, described.end)
            size = described.end - described.begin
            if gradient.layout is not torch.strided or gradient.numel() != size:
                continue
            gradients[number] = gradient
            if end_number <= begin_number:
                continue
            views.append(positions.part(gradient, described.begin, begin_number, end_number))
            self._places.append((number, begin_number, end_number))
            if parts > 1:
                self.facts.partial_used[str(number)] = parts
        if self._left and not is_of_wrapper:
            empty = next(iter(self._left.values())).new_zeros(SIZE)  # on their device
            left = [self._left.get(n, empty[: end - begin]) for n, begin, end in self._places]
            self.used_left = joined(left)
        self.used = appended(self.used, views)
        if gradients:  # a wrapper's group may have none of this rank, or of this check
            sizes = largest([gradients.get(number) for number in self._numbers])
            before = self.sizes
            self.sizes = sizes if before is None else torch.maximum(before, sizes)

    def note_without(self) -> None:
        """Note the parameters whose gradients a wrapper's step did not use."""
        for number in sorted(self.types.keys() - self._taken):
            self._note_without(number)

    def _note_without(self, number: int) -> None:
        """Note that the optimizer has no gradient of a parameter, unless the loop itself took it
        away after the last backward."""
        if self._marks.get(number, NO_GRADIENT) != NO_GRADIENT:
            return
        entry = self._watched[number]
        has_part = entry.described.optimized and entry.described.end > entry.described.begin
        if has_part and entry.share.steps:
            self.facts.without_gradient.append(entry.described.name)

    def describe(self, post: Post) -> None:
        """Say in a post what was sampled; ``tensors`` has the samples."""
        self.facts.computed = {
            str(n): kind for n, kind in self.types.items() if n not in self._unusable
        }
        post.gradients = self.facts

    def tensors(self) -> dict[str, Tensor | None]:
        """The samples, as a post names them."""
        return {
            "gradient_sizes": self.sizes,
            "computed": self.computed,
            "used": self.used,
            "places": torch.tensor(self._places, dtype=torch.int64).flatten(),
            "left": self.used_left,
        }


class Leftovers:
    """The gradients that were there when a checked step had ended."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[Any, int]] = {}

    def note(self, watched: Sequence[Watched], numbers: Sequence[int]) -> None:
        """Note the gradients that there are after a step, of the parameters ``numbers``, at which
        the next check looks."""
        gradients = ((number, _gradient(watched[number])) for number in numbers)
        self._notes = {
            number: (weakref.ref(gradient), version(gradient))
            for number, gradient in gradients
            if gradient is not None
        }

    def is_noted(self, number: int, entry: Watched) -> bool:
        """Whether a parameter has the gradient that was noted, and nobody has written it since.
        DDP may have moved it into a bucket."""
        reference, noted_version = self._notes.get(number, (None, 0))
        gradient = _gradient(entry)
        if gradient is None or reference is None:
            return False
        if reference() is gradient:
            return bool(version(gradient) == noted_version)
        # DDP's bucket: the gradient is a part of a larger tensor.
        size = gradient.numel() * gradient.element_size()
        return bool(gradient.untyped_storage().nbytes() > size)

    def sample(self, entry: Watched, positions: Positions) -> Tensor | None:
        """The values at the positions of the gradient that a parameter has; None without one."""
        gradient = _gradient(entry)
        if gradient is None:
            return None
        begin, end = entry.described.begin, entry.described.end
        begin_number, end_number = positions.within(begin, end)
        if gradient.numel() != end - begin or end_number <= begin_number:
            return None
        values = positions.part(gradient, begin, begin_number, end_number)
        return values.to(torch.float32, copy=True)  # the backward adds to the gradient


def _gradient(entry: Watched) -> Any:
    """The gradient of a parameter to which a backward adds; None without one."""
    if entry.share.master or entry.share.used or entry.parameter.grad is None:
        return None
    gradient = local(entry.parameter.grad)
    is_usual = gradient.layout is torch.strided and partial_ranks(entry.parameter.grad) == 1
    return gradient if is_usual else None
