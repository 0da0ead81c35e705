"""In fp16, the loss scale must recover: steps that are skipped again and again train nothing.

A gradient that overflows halves the scale, and its step is skipped. That is right once in a while.
If an activation itself overflows, no scale is small enough: each step is skipped, and some releases
go on like this until the end of the run.

    detector = Detector()
    detector.attach(model, optimizer)      # a DeepSpeed engine and its optimizer
    print(detector.step(number))           # after each step: None, or an alarm

Knows DeepSpeed's optimizers, which tell whether a step overflowed, and their scale.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

ROW = 8
"""Skipped steps in a row that are too many."""

AT_LEAST = 3
"""Skipped steps in a row at the smallest scale that are too many."""


class Detector:
    """Counts the steps in a row that DeepSpeed skipped."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._optimizer, self._scale = optimizer, _scale(optimizer)
        self._row = self._least = 0

    def step(self, number: int) -> list[str]:
        before, self._scale = self._scale, _scale(self._optimizer)
        skipped = before is not None and bool(getattr(self._optimizer, "overflow", False))
        self._row = self._row + 1 if skipped else 0
        self._least = self._least + 1 if skipped and self._scale == before else 0
        alarms = []
        if self._row == ROW:
            alarms.append(f"{ROW} steps in a row overflowed: no loss scale helps")
        if self._least == AT_LEAST:
            alarms.append(f"{AT_LEAST} steps in a row overflowed at the smallest scale")
        return alarms


def _scale(optimizer: Any) -> float | None:
    scale = getattr(optimizer, "cur_scale", None)
    if scale is None:
        scale = getattr(getattr(optimizer, "loss_scaler", None), "cur_scale", None)
    return None if scale is None else float(scale)
