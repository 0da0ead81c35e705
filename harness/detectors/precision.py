"""A step must not be lost in the rounding of weights in bf16 or fp16.

Such weights need a copy in fp32 that the optimizer updates. Without one, a step that is less than
half a unit in the last place changes nothing: the training goes on, and most weights stand still.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

It looks at what the optimizer updates, shards too, and alarms at the third step in a row that
moves less than half of the values that have a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.arithmetic import MOVED, count_moved
from harness.detectors.sampling import SIZE, before_step

SHORT = (torch.bfloat16, torch.float16)

ROW = 3
"""Steps in a row that are too many."""


class Detector:
    """Counts the values that a step of the optimizer moves."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._row, self._optimizer = 0, optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            before_step(optimizer, self._look)

    def _look(self) -> None:
        self._before = [
            (parameter, _some(parameter), _some(parameter.grad) != 0)
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.dtype in SHORT and parameter.grad is not None and float(group["lr"])
        ]

    def step(self, number: int) -> str | None:
        count, total = count_moved((_some(p) != was, has) for p, was, has in self._before)
        self._before = []
        self._row = self._row + 1 if total and count < MOVED * total else 0
        if self._row != ROW:
            return None
        return (
            f"the last {ROW} steps moved less than half of the weights: {count} of {total} values"
        )


def _some(tensor: Any) -> Tensor:
    """A few values of a tensor, or of this rank's shard."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    flat = local.detach().reshape(-1)
    return flat[:: max(1, len(flat) // SIZE)].clone()
