"""By which norm a loop clips its gradients, in a checked step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...training.parameters import Watched
from ..posting.posts import Alarm
from .samples import norms, on_device


class Clips:
    """The clipping of one step."""

    def __init__(self) -> None:
        self._count = 0
        """How often gradients were clipped."""
        self.norms: Tensor | None = None
        """The norm of each gradient, before all of them were clipped."""
        self.after: Tensor | None = None
        """The norm of each of these gradients, after they were clipped."""
        self._gradients: list[Tensor | None] = []
        self.clipped: Tensor | None = None
        """By which norm, and to which one, they were clipped."""
        self._limits: list[Tensor] = []
        """By which norm gradients were clipped last, and to which one."""
        self._is_scaled = True
        """Whether no loss scaler has divided the gradients yet."""
        self.scaled: Tensor | None = None
        """Both, if a loss scaler divided the gradients only later, and its scale."""

    def begin(
        self, ids: set[int], norm_type: float, watched: Sequence[Watched], numbers: Sequence[int]
    ) -> None:
        """Note how long the gradients are that are clipped now, if the clipping is that of all of
        them, and this check looks at all. ``ids`` are those of its parameters."""
        self._count += 1
        self.norms = None
        with_gradient = {
            id(one.parameter): one.parameter.grad
            for one in watched
            if one.parameter.grad is not None
        }
        is_whole = len(numbers) == len(watched) and with_gradient.keys() <= ids
        if self._count > 1 or norm_type != 2 or not is_whole or not with_gradient:
            return
        gradients = list(with_gradient.values())
        if all(type(one) is Tensor and one.layout is torch.strided for one in gradients):
            parameters = [watched[number].parameter for number in numbers]
            self._gradients = [with_gradient.get(id(one)) for one in parameters]
            self.norms = norms(self._gradients, 2.0)

    def end(self, norm: Any, limit: Any) -> None:
        """Note by which norm, and to which one, these gradients were clipped."""
        if self.norms is not None and isinstance(norm, (float, Tensor)):
            device = self.norms.device
            values = [on_device(one, device) for one in (norm, limit)]
            self.clipped, self.after = torch.cat(values), norms(self._gradients, 2.0)
        self._gradients = []
        if type(norm) is Tensor and self._is_scaled:
            self._limits = [on_device(one, norm.device) for one in (norm, limit)]

    def tensors(self) -> dict[str, Tensor | None]:
        """What a post has of the clipping."""
        has_norms = self.norms is not None and self.clipped is not None
        values = {"norms": self.norms, "clipped": self.clipped, "after": self.after}
        return {"scaled": self.scaled, **(values if has_norms else {})}

    def unscale(self, scaler: Any, is_armed: bool) -> None:
        """Note the scale by which a loss scaler divides the gradients, if they were clipped
        before."""
        scale = getattr(scaler, "_scale", None)  # it is on the device
        if is_armed and self._is_scaled and self._limits and type(scale) is Tensor:
            scale = on_device(scale, self._limits[0].device)
            self.scaled = torch.cat([*self._limits, scale])
        self._is_scaled = False


LATE = 3
"""Clippings in a row that come too late, which are told: no case set this number; a test has two,
one in time and two again."""


class ClipOrder:
    """Whether gradients are clipped only after the step that uses them."""

    def __init__(self) -> None:
        self._late = 0

    def clipped(self, limit: Any, is_late: bool) -> Alarm | None:
        """Note a clipping to a norm; ``is_late``: no backward ran since the last step."""
        is_limit = isinstance(limit, Tensor) or math.isfinite(limit)  # others measure the norm
        self._late = self._late + 1 if is_late and is_limit else 0
        if self._late != LATE:
            return None
        text = "gradients are clipped after the step that uses them, so that no step is clipped"
        return Alarm("gradients", "late", text)
