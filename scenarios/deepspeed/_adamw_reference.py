"""Plain torch's Adam on DeepSpeed's rows. Imports torch: import it inside ``run``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scenarios.common import linear
from scenarios.common.linear import Rows


class Reference:
    """A copy of a module that plain torch trains, after ``empty`` steps with zero gradients."""

    def __init__(self, module: nn.Module, make: Callable[[Any], Any], empty: int) -> None:
        self.module = copy.deepcopy(module)
        self.optimizer = make(self.module.parameters())
        for _ in range(empty):
            for parameter in self.module.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()

    def step(self, rows: Rows) -> float:
        """Train on a global batch; returns its loss."""
        self.optimizer.zero_grad()
        inputs, labels = rows
        loss = linear.loss(self.module(inputs), labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def distance(self, weights: Mapping[str, Tensor]) -> float:
        """The greatest difference between its weights and these."""
        parameters = dict(self.module.named_parameters())
        return max(float((parameters[n] - w).detach().abs().max()) for n, w in weights.items())


class Beside:
    """Plain torch beside DeepSpeed: as it should be, and after an empty step."""

    def __init__(self, module: nn.Module, make: Callable[[Any], Any]) -> None:
        self.right, self.ahead = (Reference(module, make, empty) for empty in (0, 1))

    def step(self, rows: Rows) -> None:
        """Train both on a global batch."""
        self.loss = self.right.step(rows)
        self.ahead.step(rows)

    def facts(self, optimizer: Any, weights: Mapping[str, Tensor], lr: float) -> dict[str, Any]:
        """What to record of a step besides its loss; ``weights`` are those that Adam updates."""
        return {
            "reference_loss": self.loss,
            "count": counted(optimizer),
            "strayed": self.right.distance(weights) / lr,
            "strayed_ahead": self.ahead.distance(weights) / lr,
        }


def counted(optimizer: Any) -> int:
    """How many steps Adam has counted: its own count decides how it corrects its moments."""
    base = getattr(optimizer, "optimizer", optimizer)
    counts = {int(state["step"]) for state in base.state.values() if "step" in state}
    return max(counts, default=0)
