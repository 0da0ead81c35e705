"""The losses of all micro-batches and ranks of a step must count once, together.

With k micro-batches and n ranks, the step's gradient is a weighted sum of the gradients of the
micro-batches' own mean losses. Whatever the weights are (1 / k each, or by the number of tokens),
their sum over the micro-batches, averaged over the ranks, is 1. Trainers of several releases made
it k, n or 1 / k.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

For models whose output has ``logits`` and that are given ``labels``: the gradient of the logits, at
one position, is compared with that of the mean cross-entropy. Other losses have another
direction there, and are left out.
"""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.sampling import from_all

IGNORED = -100
NEAR = 1e-2
"""How far the sum of the weights may be from 1."""

STRAIGHT = 0.999
"""The least cosine with the gradient of the mean cross-entropy."""

SCALE = 256
"""A sum above this comes from a scaled loss."""


class Detector:
    """Adds up the weights with which the micro-batches' losses enter a step."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group, self._weights, self._unknown = group, [0.0], False
        while isinstance(inner := getattr(model, "module", None), nn.Module):
            model = inner  # DDP returns a copy of the logits, which the loss does not use
        model.register_forward_hook(self._called, with_kwargs=True)

    def _called(self, module: nn.Module, _: Any, named: dict[str, Any], output: Any) -> None:
        logits, labels = getattr(output, "logits", None), named.get("labels")
        if isinstance(output, dict):
            logits = output.get("logits", logits)
        if not (isinstance(logits, Tensor) and isinstance(labels, Tensor) and logits.requires_grad):
            return
        if labels.shape == logits.shape[:-1] and not labels.is_floating_point():
            logits.register_hook(lambda gradient: self._weigh(gradient, logits.detach(), labels))

    def _weigh(self, gradient: Tensor | None, logits: Tensor, labels: Tensor) -> None:
        """Compare the gradient at one position with that of the mean; for labels that the loss
        shifts, as all causal models do, or for those that stand where they are."""
        if gradient is None:
            return
        classes = logits.shape[-1]
        for shift in (1, 0) if labels.dim() == 2 else (0,):
            kept = logits[:, :-1] if shift else logits
            found = gradient[:, :-1] if shift else gradient
            classed = (labels[:, 1:] if shift else labels).flatten()
            there = (classed != IGNORED).nonzero().flatten()
            if not len(there):
                continue
            at = int(there[0])
            right = kept.reshape(-1, classes)[at].float().softmax(-1)
            right[classed[at]] -= 1
            right, mine = right / len(there), found.reshape(-1, classes)[at].float()
            lengths = float(right.norm()) * float(mine.norm())
            if lengths and float(right @ mine) / lengths > STRAIGHT:
                self._weights.append(float(right @ mine / (right @ right)))
                return
        self._unknown = True

    def step(self, number: int) -> str | None:
        total, unknown = math.fsum(self._weights), self._unknown
        self._weights, self._unknown = [0.0], False
        every = from_all((total, unknown or not total), self._group)
        total = math.fsum(one for one, _ in every) / len(every)
        unknown = any(one for _, one in every)
        if unknown or abs(total - 1) <= NEAR or abs(total) > SCALE:
            return None
        return f"the step counts the loss {total:.4g} times: micro-batches or ranks count wrongly"
