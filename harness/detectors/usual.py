"""The checks that most training loops have: norms, losses, nan, and a sum of the weights.

They are here for comparison: ``score`` shows how many bugs they miss.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.steps import before_step, from_all, gradient_scale

WARM = 3
"""Steps after which a usual value is known."""


class _Watching:
    """A check of each step of an optimizer of torch."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.model, self.group, self.values = model, group, list[float]()
        self.begin(optimizer)

    def begin(self, optimizer: Any) -> None: ...


class GradientNorm(_Watching):
    """The norm of the gradients that this rank has before the step."""

    def begin(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        if hasattr(optimizer, "register_step_pre_hook"):
            before_step(optimizer, self._look)

    def _look(self) -> None:
        norms = [
            float(_local(p.grad).norm()) for p in self.model.parameters() if p.grad is not None
        ]
        self.values.append(math.hypot(*norms) / gradient_scale(self._optimizer))

    def step(self, number: int) -> str | None:
        return _unusual("gradient norm", self.values, 10)


class LossSpike(_Watching):
    """The loss that the model returns."""

    def begin(self, optimizer: Any) -> None:
        self.model.register_forward_hook(self._called)

    def _called(self, module: nn.Module, _: Any, output: Any) -> None:
        loss = getattr(output, "loss", output)
        if module.training and isinstance(loss, Tensor) and loss.numel() == 1:
            self.values.append(float(_local(loss).detach()))

    def step(self, number: int) -> str | None:
        return _unusual("loss", self.values, 3)


class Nan(_Watching):
    """Whether a weight is nan or infinite."""

    def step(self, number: int) -> str | None:
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(_local(parameter)).all()):
                return f"{name} is not finite"
        return None


class Weights(_Watching):
    """Whether the sums of the weights are equal on all ranks, if they were at first."""

    def begin(self, optimizer: Any) -> None:
        self._first = self._sum()
        self._equal: bool | None = None

    def _sum(self) -> float:
        return sum(float(_local(p).detach().double().sum()) for p in self.model.parameters())

    def _agree(self, total: float) -> bool:
        reference, *others = from_all(numpy.float32(total), self.group)
        return all(peer == reference for peer in others)

    def step(self, number: int) -> str | None:
        if self._equal is None:
            self._equal = self._agree(self._first)
        equal = self._agree(self._sum())
        return "the ranks' weights differ" if self._equal and not equal else None


def _unusual(name: str, values: list[float], times: float) -> str | None:
    if not values:
        return None
    *before, latest = values
    if not math.isfinite(latest):
        return f"the {name} is {latest}"
    usual = statistics.median(before) if len(before) >= WARM else None
    if usual is not None and latest > times * usual > 0:
        return f"the {name} is {latest:.4g}, and {usual:.4g} usually"
    return None


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
