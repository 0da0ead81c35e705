"""Plain torch's Adam on DeepSpeed's rows. Imports torch: import it inside ``run``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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

    def distance(self, module: nn.Module) -> float:
        """The greatest difference between the weights and a module's."""
        pairs = zip(self.module.parameters(), module.parameters(), strict=True)
        return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)


def counted(engine: Any) -> int:
    """How many steps Adam has counted: its own count decides how it corrects its moments."""
    base = getattr(engine.optimizer, "optimizer", engine.optimizer)
    counts = {int(state["step"]) for state in base.state.values() if "step" in state}
    return max(counts, default=0)
