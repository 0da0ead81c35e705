"""What plain torch computes on the micro-batches of a step, and what the step applied of it.

With SGD at a known rate, (before - after) / rate is the gradient that was applied. Plain torch
computes the gradient of each micro-batch at the same weights; their mean is what the step should
have applied. All rows have the same length, so the mean of the micro-batches' means is the mean of
the batch. ``applied`` judges what ``facts`` returns. Imports torch: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.detectors import arithmetic
from scenarios.common.applied import CUT

Loss = Callable[[Mapping[str, Tensor], Any], Tensor]
"""A mean over the rows of a micro-batch, as a function of the weights and the micro-batch."""


@dataclass(frozen=True)
class Plain:
    """What plain torch computes on some micro-batches."""

    losses: Sequence[float]
    """The loss of each."""
    micro: Sequence[Mapping[str, Tensor]]
    """The gradient of each, by the names of the weights."""

    @property
    def loss(self) -> float:
        """The mean of the micro-batches' losses."""
        return sum(self.losses) / len(self.losses)


def loss_of(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """The loss of a module whose micro-batches are inputs and labels."""

    def call(weights: Mapping[str, Tensor], rows: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = (part.to(next(iter(weights.values()))) for part in rows)
        return loss(torch.func.functional_call(module, dict(weights), (inputs,)), labels)

    return call


def differentiate(loss: Loss, weights: Mapping[str, Tensor], micro_batches: Iterable[Any]) -> Plain:
    """Differentiate the loss of each micro-batch."""
    leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    losses, gradients = [], []
    for batch in micro_batches:
        value = loss(leaves, batch)
        tensors = torch.autograd.grad(value, list(leaves.values()))
        losses.append(float(value.detach()))
        gradients.append(dict(zip(leaves, tensors, strict=True)))
    return Plain(losses, gradients)


def copied(module: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """A copy of a module's weights, by name."""
    return {n: p.detach().to(dtype or p.dtype).clone() for n, p in module.named_parameters()}


def facts(
    plain: Plain, before: Mapping[str, Tensor], after: Mapping[str, Tensor], rate: float
) -> dict[str, Any]:
    """The facts of ``applied.Beside`` of a step that moved this rank's weights from ``before`` to
    ``after``."""

    def flat(tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[name].cpu().double().flatten() for name in before])

    applied = (flat(before) - flat(after)) / rate
    micro = torch.stack([flat(part) for part in plain.micro])
    gradient = micro.mean(0)
    projection = arithmetic.projection(applied, gradient)
    aside = (applied - projection.ratio * gradient)[:, None]
    beside = torch.linalg.lstsq(micro.T / len(micro), aside, rcond=CUT, driver="gelsd").solution
    return {
        "gradient": projection.right,
        "applied": projection.got,
        "ratio": projection.ratio,
        "off": projection.aside,
        "micro": [
            round(share, 4) + 0.0 for share in (projection.ratio + beside.flatten()).tolist()
        ],
        "reference_loss": plain.loss,
    }


class Update:
    """One update of a module on a global batch, and what plain torch computes for it."""

    def __init__(self, loss: Loss, module: nn.Module, *micro_batches: Any) -> None:
        """Make it before the step; ``micro_batches`` are those of all ranks."""
        self.module, self.before = module, copied(module, torch.float64)
        self.plain = differentiate(loss, self.before, micro_batches)

    def facts(self, rate: float) -> dict[str, Any]:
        """``facts`` of the step at this learning rate; call it after the step."""
        return facts(self.plain, self.before, copied(self.module), rate)
