"""How often a step counts the loss of each micro-batch.

The gradient that arrives at the value of a loss function is the weight of that loss in the step: it
must be 1 by the number of micro-batches, whoever divides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from .samples import on_device

MOST_CALLS = 1000
"""Losses that are kept without a backward: a loop may go on with losses, and train no more."""

IGNORED = -100
"""The target that torch's losses ignore."""


@dataclass
class Loss:
    """The value of one call of a loss function, and the gradient that arrives there."""

    value: Tensor
    count: Any = 1.0
    """The number of targets, if the value is a sum."""
    squared: bool = False
    weight: Any = None


class Losses:
    """The losses of the micro-batches of a step."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the losses of the last step."""
        self._calls: deque[Loss] = deque(maxlen=MOST_CALLS)
        self._micro: list[tuple[Any, list[Loss], Any]] = []
        self._roots: list[Tensor] = []
        self._cleared = 0
        self.gathers = False
        """Whether tensors of all ranks were gathered."""

    def cleared(self) -> None:
        """Note that the gradients of the backwards so far were cleared."""
        self._cleared = len(self._micro)
        self._roots = []

    def spoil(self) -> None:
        """Make the losses of this step unclear."""
        self._micro = [(None, [], 1.0)]

    def called(
        self,
        value: Any,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        smoother: Any = None,
        name: str = "",
    ) -> None:
        """Note the value of the loss function of a name. ``smoother`` is the Trainer's label
        smoothing."""
        if not _is_plain(value) or not value.requires_grad or value.dim():
            return
        loss = Loss(value.detach(), squared=name == "mse_loss")
        if smoother is not None:
            loss.count = _smoothed_count(smoother, *arguments, **keywords)
        elif keywords.get("reduction", "mean") == "sum" or keywords.get("size_average") is False:
            target = arguments[1] if len(arguments) > 1 else keywords["target"]
            ignored = keywords.get("ignore_index", IGNORED)
            loss.count = target.numel() if target.is_floating_point() else (target != ignored).sum()
        self._calls.append(loss)
        value.register_hook(
            unserializable_hook(lambda gradient: setattr(loss, "weight", gradient.detach()))
        )

    def backward(self, root: Any, scaler: Any) -> None:
        """Note that a backward begins from ``root``, with the scale of a loss scaler."""
        calls = list(self._calls)
        self._calls.clear()
        is_loss = self.note_root(root)
        scale = getattr(scaler, "_scale", None) if scaler and scaler.is_enabled() else None
        scale = 1.0 if scale is None else scale.detach().clone()
        self._micro.append((root.detach() if is_loss else None, calls, scale))

    def note_root(self, root: Any) -> bool:
        """Note what a backward begins from; returns whether it is a loss."""
        is_loss = _is_plain(root) and not root.dim() and root.is_floating_point()
        self._roots += [root.detach()] if is_loss else []
        return is_loss

    def roots(self) -> Tensor | None:
        """What the backwards began from, whatever it is made of; None without one."""
        roots = self._roots
        return torch.cat([on_device(one, roots[0].device) for one in roots]) if roots else None

    @property
    def are_squared(self) -> bool:
        """Whether the losses of this step are squared distances."""
        calls = [call for _, calls, _ in self._micro for call in calls if call.weight is not None]
        return bool(calls) and all(call.squared for call in calls)

    def tensor(self, with_cleared: bool = True) -> Tensor | None:
        """For each micro-batch: root, value, weight, count and scale. None if one is unclear: its
        loss is made of several calls, or of none. A call whose value nobody uses does not count,
        and those of cleared gradients only if they are missing in the step."""
        rows = []
        for root, calls, scale in self._micro if with_cleared else self._micro[self._cleared :]:
            weighted = [call for call in calls if call.weight is not None]
            if root is None or len(weighted) != 1:
                return None
            loss = weighted[0]
            values = (root, loss.value, loss.weight, loss.count, scale)
            device = loss.value.device
            rows += [on_device(value, device) for value in values]
        return torch.cat(rows) if rows else None


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor of this rank: what is done with a DTensor may be a collective."""
    return isinstance(value, Tensor) and not hasattr(value, "placements")


def _smoothed_count(
    smoother: Any,
    output: Any,
    labels: Tensor,
    shift_labels: bool = False,
    items: Any = None,
    **keywords: Any,
) -> Any:
    """As which part of a mean the value of the Trainer's label smoothing counts: some releases
    divide the sum by the tokens of all micro-batches."""
    items = keywords.get("num_items_in_batch", items)
    if items is None:
        return 1.0
    targets = labels[..., 1:] if shift_labels else labels
    return (targets != smoother.ignore_index).sum() / items
