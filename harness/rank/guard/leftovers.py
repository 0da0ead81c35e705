"""Gradients that a step leaves: if nobody clears them, the next step adds its own to them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..training.layouts import local
from ..training.parameters import Watched
from .samples import Positions, partial_ranks, version


class Leftovers:
    """The gradients that were there when a checked step had ended."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[Any, int]] = {}

    def note(self, watched: Sequence[Watched]) -> None:
        """Note the gradients that there are: a step has ended."""
        gradients = ((number, _gradient(one)) for number, one in enumerate(watched))
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
        return _is_part(gradient)

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


def _is_part(gradient: Any) -> bool:
    """Whether a gradient is a part of a larger tensor."""
    whole = gradient.untyped_storage().nbytes()
    return bool(whole > gradient.numel() * gradient.element_size())


def _gradient(entry: Watched) -> Any:
    """The gradient of a parameter to which a backward adds; None without one."""
    if entry.share.master or entry.share.used or entry.parameter.grad is None:
        return None
    gradient = local(entry.parameter.grad)
    is_usual = gradient.layout is torch.strided and partial_ranks(entry.parameter.grad) == 1
    return gradient if is_usual else None
