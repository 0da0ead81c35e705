"""The learning rate must follow its schedule: one step of it for each step of the optimizer.

A scheduler that steps with each micro-batch ends the schedule too early; one that is resumed begins
again; one that is wrapped wrongly never changes the rate. A loss curve shows none of them.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm
    detector.save(folder)                  # with each checkpoint
    detector.load(folder)                  # after the load of one

Knows the schedulers of torch, which it finds by their optimizer, and of others only the rates.
"""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import lr_scheduler

from harness.detectors.arithmetic import NOISE, begins_with_jump

MOVING = ("CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR")
"""Schedulers whose rate is another one after each of their steps."""

STILL = 3
"""Steps of such a scheduler without another rate that are too many."""

FILE = "rates.json"


class Detector:
    """Watches the rate of each group of an optimizer, and the steps of its schedulers."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._optimizer, self._group = optimizer, group
        self._schedulers: list[Any] | None = None
        self._counts: list[int] = []
        self._still = 0
        self._rates = [self._read_rates()]
        self._saved: list[float] | None = None

    def _read_rates(self) -> list[float]:
        return [float(group["lr"]) for group in getattr(self._optimizer, "param_groups", [])]

    def save(self, path: Any) -> None:
        Path(path, FILE).write_text(json.dumps(self._read_rates()))

    def load(self, path: Any) -> None:
        file = Path(path, FILE)
        self._saved = json.loads(file.read_text()) if file.exists() else None
        self._rates = [self._read_rates()]

    def step(self, number: int) -> list[str]:
        alarms = [self._resumed(), self._too_often(), self._dip(number), self._unmoved()]
        self._rates.append(self._read_rates())
        return [alarm for alarm in alarms if alarm]

    def _resumed(self) -> str:
        """The first step after a load has the rate that was next at the save."""
        saved, self._saved = self._saved, None
        rates = self._rates[-1]
        if saved is None or len(saved) != len(rates):
            return ""
        for before, after in zip(saved, rates, strict=True):
            if not math.isclose(before, after, rel_tol=NOISE):
                return f"the rate was {before:.4g} at the save, and {after:.4g} after the load"
        return ""

    def _too_often(self) -> str:
        """A schedule advances by one step, or with accelerate by the number of ranks."""
        if self._schedulers is None:
            self._schedulers = self._find_schedulers()
            self._counts = list(map(_count, self._schedulers))
            return ""
        counts = list(map(_count, self._schedulers))
        steps = [now - before for now, before in zip(counts, self._counts, strict=True)]
        self._counts = counts
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        jumps = [advance for advance in steps if advance > 1 and advance != ranks]
        return f"the schedule went on {jumps[0]} times in one step" if jumps else ""

    def _find_schedulers(self) -> list[Any]:
        inner = getattr(self._optimizer, "optimizer", self._optimizer)
        return [
            scheduler
            for scheduler in gc.get_objects()
            if issubclass(type(scheduler), lr_scheduler.LRScheduler)  # isinstance() asks proxies
            and getattr(scheduler, "optimizer", None) in (self._optimizer, inner)
        ]

    def _dip(self, number: int) -> str:
        """No schedule has its lowest rate at the second step, and higher rates around it."""
        for rates in zip(*self._rates[:3], strict=True) if number == 3 else ():
            if begins_with_jump(rates):
                initial, *later = (f"{rate:.4g}" for rate in rates)
                return f"the first step had the rate {initial}, the next {', '.join(later)}"
        return ""

    def _unmoved(self) -> str:
        names = [type(scheduler).__name__ for scheduler in self._schedulers or ()]
        alone = len(names) == 1 and names[0] in MOVING  # others may be parts of one
        self._still = self._still + 1 if alone and self._read_rates() == self._rates[-1] else 0
        return f"{names[0]} does not change the rate" if self._still == STILL else ""


def _count(scheduler: Any) -> int:
    """How many steps a scheduler has taken."""
    return int(getattr(scheduler, "_step_count", scheduler.last_epoch))
