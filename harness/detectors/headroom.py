"""The headroom in bits between the attention logits and the largest number of fp16, and its trend.

In fp16 training, the loss and the gradient norm show an overflow only after it has happened. But
the largest magnitude among the attention logits, the raw QK^T, grows for a long time before. Its
distance to 65504 is the headroom:

    headroom = Headroom()
    headroom.observe("layer 3", scores)                # in forward: before scaling and masking
    for reading in headroom.step(): print(reading)     # once a step; reading.low is the alarm

Observe the output of the low-precision matmul directly: a mask would hide an overflow, and the
scale 1/sqrt(d) would hide how near it is. Each rank sees its own part of the batch and of the
heads, so any rank's alarm counts.

Source: the numbers of fp16 and bf16, IEEE 754; the threshold is measured, in
scenarios/deepspeed/fp16_overflow/README.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

FP16_MAX = 65504.0
"""The largest finite fp16 number. bf16 goes to 3.4e38."""


@dataclass(frozen=True)
class Reading:
    """The headroom of one tensor in one step."""

    name: str
    largest: float
    """The largest magnitude observed in this step; inf or nan if it had one."""
    bits: float
    """log2(limit / largest): 1 means that it may still double, 0 or less that it does not fit. It
    is -inf if ``largest`` is inf or nan, and inf if it is 0."""
    trend: float | None
    """Bits gained per step, by least squares over the window; None before there are two points."""
    low: bool
    """Whether there are fewer bits left than the threshold."""

    @property
    def steps_left(self) -> float | None:
        """Steps to the limit if the trend continues; None if it does not lead there."""
        if self.trend is None or self.trend >= 0 or not math.isfinite(self.bits):
            return None
        return max(self.bits, 0.0) / -self.trend

    def __str__(self) -> str:
        text = f"{self.name}: largest {self.largest:.4g}, {self.bits:.1f} bits of headroom"
        if self.steps_left is not None:
            text += f", {self.trend:+.2f} bits a step: gone in about {self.steps_left:.0f} steps"
        return text


class Headroom:
    """Keeps the largest magnitude of each named tensor in a step, and the trend over steps.

    ``limit`` is the largest number that fits; ``warn_below`` is the threshold in bits; ``window``
    is how many steps the trend looks back on. Raises ValueError for values that make no sense.
    """

    def __init__(self, limit: float = FP16_MAX, warn_below: float = 3.0, window: int = 20) -> None:
        if not (0 < limit < math.inf and math.isfinite(warn_below)):
            raise ValueError("limit must be above zero, and limit and warn_below finite")
        if window < 2:
            raise ValueError("a trend needs a window of at least 2 steps")
        self.limit = limit
        self.warn_below = warn_below
        self.window = window
        self.steps = 0
        self._largest: dict[str, Tensor] = {}
        self._history: dict[str, deque[tuple[int, float]]] = {}

    def observe(self, name: str, tensor: Tensor) -> None:
        """Observe a tensor of any shape and floating dtype; an empty one is ignored.

        May be called several times a step under one name (micro-batches, recomputation): the
        largest counts. Costs two reductions on the tensor's device, without synchronization.
        """
        if not tensor.is_floating_point():
            raise ValueError(f"{name}: {tensor.dtype} has no headroom to lose")
        if not tensor.numel():
            return
        lowest, highest = tensor.detach().aminmax()
        largest = torch.maximum(-lowest, highest).float()
        previous = self._largest.get(name)
        self._largest[name] = largest if previous is None else torch.maximum(previous, largest)

    def step(self) -> list[Reading]:
        """End a step: a reading for each tensor observed in it, in the order of observation.

        Waits for the device once for each tensor. nan and inf count as no headroom.
        """
        self.steps += 1
        readings = [self._reading(name, float(t)) for name, t in self._largest.items()]
        self._largest.clear()
        return readings

    def _reading(self, name: str, largest: float) -> Reading:
        if not math.isfinite(largest):
            bits = -math.inf
        else:
            bits = math.log2(self.limit / largest) if largest else math.inf
        history = self._history.setdefault(name, deque(maxlen=self.window))
        if math.isfinite(bits):
            history.append((self.steps, bits))
        return Reading(name, largest, bits, slope(list(history)), bits < self.warn_below)


def slope(points: list[tuple[int, float]]) -> float | None:
    """The least-squares slope of (x, y) points; None without two different x."""
    if len({x for x, _ in points}) < 2:
        return None
    middle = sum(x for x, _ in points) / len(points)
    above = sum((x - middle) * y for x, y in points)
    return above / sum((x - middle) ** 2 for x, _ in points)
