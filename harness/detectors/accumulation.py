"""The losses of all micro-batches and ranks of a step must count once, together.

With k micro-batches and n ranks, the step's gradient is a weighted sum of the gradients of the
micro-batches' own mean losses. Whatever the weights are (1 / k each, or by the number of tokens),
their sum over the micro-batches, averaged over the ranks, is 1. Trainers of several releases made
it k, n or 1 / k.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

For models whose output has ``logits``: their gradient, at one position, is compared with that of
the mean cross-entropy, with label smoothing or without. The gradients of other losses have
another direction there, and are left out.

Steps that suddenly have fewer micro-batches are also an alarm.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.arithmetic import projection
from harness.detectors.rows import IGNORED
from harness.detectors.sampling import Scaling, from_all, scaling

NEAR = 1e-2
"""How far the sum of the weights may be from 1."""

FEWEST = 4
"""Classes above which a gradient shows its direction also without labels."""

STRAIGHT = 0.999
"""The least cosine with the gradient of the mean cross-entropy."""

SHORTER = 4
"""Steps in a row with less than half of the micro-batches that are too many."""

SCALE = 256
"""A sum above this comes from a loss that DeepSpeed has scaled."""


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
        self._calls = self._usual = self._shorter = 0
        self._scaling = Scaling()
        if isinstance(optimizer, torch.optim.Optimizer):
            self._scaling = scaling(optimizer)
            self._scaling.skip.append(self._forget)
        model.register_forward_pre_hook(self._count)
        while isinstance(inner := getattr(model, "module", None), nn.Module):
            model = inner  # DDP returns a copy of the logits, which the loss does not use
        model.register_forward_hook(self._called, with_kwargs=True)

    def _forget(self) -> None:
        """Forget a skipped step: no other step uses its micro-batches."""
        self._weights, self._unknown, self._calls = [0.0], False, 0

    def _count(self, module: nn.Module, _: Any) -> None:
        self._calls += module.training and torch.is_grad_enabled()

    def _called(self, module: nn.Module, _: Any, keywords: dict[str, Any], output: Any) -> None:
        logits, labels = getattr(output, "logits", None), keywords.get("labels")
        if isinstance(output, dict):
            logits = output.get("logits", logits)
        if not (isinstance(logits, Tensor) and logits.requires_grad):
            return
        if labels is None and logits.shape[-1] > FEWEST:
            logits.register_hook(lambda gradient: self._fit(gradient, logits.detach()))
            return
        if not isinstance(labels, Tensor):
            return
        one_each = labels.numel() * logits.shape[-1] == logits.numel() and logits.shape[-1] > 1
        if one_each and not labels.is_floating_point():
            logits.register_hook(lambda gradient: self._weigh(gradient, logits.detach(), labels))

    def _weigh(self, gradient: Tensor | None, logits: Tensor, labels: Tensor) -> None:
        """Compare the gradient at one position with that of the mean; first for labels that the
        loss shifts, as in all causal models, then for labels in place."""
        if gradient is None:
            return
        rows = gradient.reshape(-1, logits.shape[-1])
        for shift in (True, False) if logits.dim() == 3 else (False,):
            places, expected = gradient_of_mean(logits, labels, shift, most=1)
            for row, expected_row in zip(rows[places].float(), expected, strict=True):
                part = projection(row, expected_row)
                if part.cosine > STRAIGHT:
                    self._weights.append(part.ratio)
                    return
        self._unknown = True

    def _fit(self, gradient: Tensor | None, logits: Tensor) -> None:
        """Without labels: each class but the right one has the gradient w / n * (p - e), where e is
        the share of label smoothing, and n the number of positions that count."""
        if gradient is None:
            return
        flat = gradient.reshape(-1, gradient.shape[-1]).float()
        places = flat.abs().sum(-1).nonzero().flatten()
        if not len(places):
            return
        rows = logits.reshape(flat.shape).float()
        slopes = [_slope(flat[at], rows[at].softmax(-1)) for at in places[:: -(-len(places) // 4)]]
        least, most = min(slopes), max(slopes)
        if least > 0 and most - least <= NEAR * most:  # no mean, if the positions count unequally
            self._weights.append(most * len(places))
        else:
            self._unknown = True

    def step(self, number: int) -> list[str]:
        alarms = [self._counted(), self._cadence()]
        return [alarm for alarm in alarms if alarm]

    def _cadence(self) -> str:
        calls, self._calls = self._calls, 0
        self._usual = self._usual or calls
        self._shorter = self._shorter + 1 if 0 < calls < self._usual / 2 else 0
        if self._shorter != SHORTER:
            return ""
        return f"a step has {calls} micro-batches now, and {self._usual} at first"

    def _counted(self) -> str:
        total, unknown = math.fsum(self._weights) / self._scaling.loss_scale, self._unknown
        self._weights, self._unknown = [0.0], False
        every = from_all((total, unknown or not total), self._group)
        total = math.fsum(one for one, _ in every) / len(every)
        unknown = any(one for _, one in every)
        if unknown or abs(total - 1) <= NEAR or abs(total) > SCALE:
            return ""
        return f"the step counts the loss {total:.4g} times: micro-batches or ranks count wrongly"


def gradient_of_mean(
    logits: Tensor, labels: Tensor, shift: bool, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient of the mean cross-entropy at the first ``most`` positions that have a label.

    Returns the numbers of these positions, and the gradient of the logits there, a row for each:
    ``(softmax - onehot) / count`` in fp32. With ``shift`` each position predicts the label of the
    next one, as in causal models.
    """
    targets = labels
    if shift:
        targets = labels.roll(-1, 1)
        targets[:, -1] = IGNORED
    targets = targets.flatten()
    places = (targets != IGNORED).nonzero().flatten()
    chosen = places[:most]
    gradient = logits.reshape(-1, logits.shape[-1])[chosen].float().softmax(-1)
    gradient[torch.arange(len(chosen), device=chosen.device), targets[chosen]] -= 1
    return chosen, gradient / len(places)


def _slope(gradient: Tensor, share: Tensor) -> float:
    """The factor from the probabilities to the gradient, without the right class and up to a
    constant; 0 if the gradient has another direction."""
    others = torch.arange(len(gradient), device=gradient.device) != gradient.argmin()
    measured, expected = gradient[others], share[others]
    part = projection(measured - measured.mean(), expected - expected.mean())
    return part.ratio if part.cosine > STRAIGHT else 0.0
