"""What the formula of an optimizer needs, in a checked step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from ...training.parameters import Watched
from ..posting.posts import Update
from .optimizers import MOMENTS, is_on_device, kind_of, plain_settings, step_count
from .samples import Positions, appended, largest, turns

UPDATED = 48
"""Parameters whose update is compared in a check; the next check has others."""


class UpdateSamples:
    """Gradients, moments and weights of some parameters before a step."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.sizes: Tensor | None = None
        """The largest value of each weight."""
        self.values: Tensor | None = None
        self.has_fused_scale = False
        """Whether the optimizer divides by a loss scale itself."""

    def take(
        self, optimizer: Any, watched: Sequence[Watched], numbers: Sequence[int], check: int
    ) -> None:
        """Sample what an optimizer steps now, of the parameters ``numbers`` of a check."""
        views: list[Tensor] = []
        if self.sizes is None:
            self.sizes = largest([watched[number].weight for number in numbers])
        groups: dict[int, Any] = {}
        for group in optimizer.param_groups:
            with_settings = group, plain_settings(group)
            groups.update((id(parameter), with_settings) for parameter in group["params"])
        for number in self._chosen(groups, watched, numbers, check):
            update, tensors = _update(optimizer, number, watched[number], groups)
            self.updates.append(update)
            views += tensors
        self.values = appended(self.values, views)
        self.has_fused_scale = getattr(optimizer, "grad_scale", None) is not None

    def tensors(self) -> dict[str, Tensor | None]:
        """What a post has of the update."""
        values = torch.zeros(0) if self.values is None else self.values
        return {"updates": values, "sizes_before": self.sizes}

    def _chosen(
        self,
        groups: Collection[int],
        watched: Sequence[Watched],
        numbers: Sequence[int],
        check: int,
    ) -> list[int]:
        """The parameters whose update this check compares, of those that it steps now."""
        ready = [
            number
            for number, one in ((n, watched[n]) for n in numbers)
            if one.described.optimized
            and one.share.steps
            and id(one.stepped) in groups
            and (gradient := one.stepped.grad) is not None
            and gradient.layout is torch.strided
            # A rank may have a part of an embedding, and its whole gradient, or one to be reduced.
            and getattr(gradient, "placements", None) == getattr(one.stepped, "placements", None)
            and one.weight.numel()
        ]
        # The part of this check comes again after some checks, and begins elsewhere then.
        start = (check - 1) // turns(len(watched)) * UPDATED % max(1, len(ready))
        most = max(0, UPDATED - len(self.updates))
        return (ready + ready)[start : start + min(most, len(ready))]


def _update(
    optimizer: Any, number: int, entry: Watched, groups: dict[int, Any]
) -> tuple[Update, list[Tensor]]:
    stepped = entry.stepped
    group, settings = groups[id(stepped)]
    state = optimizer.state.get(stepped, {})
    positions = Positions.of(entry.weight.numel())
    names = MOMENTS.get(kind_of(optimizer), ())
    present = [name for name in names if isinstance(state.get(name), Tensor)]
    tensors = [stepped.grad, *(state[name] for name in present)]
    parts = [entry.weight, *(entry.of_stepped(tensor) for tensor in tensors)]
    views = [positions.values(part) for part in parts]
    step, rate = step_count(optimizer, group, stepped), group.get("lr", 0.0)
    for value in (step, rate):
        if is_on_device(value):
            views.append(value.detach().reshape(1))
    moments = Update(
        number,
        positions.count,
        present,
        -1.0 if is_on_device(step) else float(step),
        -1.0 if is_on_device(rate) else float(rate),
        settings,
    )
    return moments, views
