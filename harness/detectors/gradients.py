"""The gradient that the optimizer uses must be the mean of what the ranks computed.

Each rank adds up its micro-batches' gradients; data parallelism then takes the mean over the ranks.
Many bugs apply another one: a rank's own, the last micro-batch's, or one that was zeroed in
between. The loss hardly shows it. This looks at a few values of each parameter as they come out of
the backward pass, before any reduction, and at what the optimizer used.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass, on every rank
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

The ranks of which the mean is taken are those that had the same weights at first. What a rank has
only a shard of is left out, and so is DeepSpeed, whose engine keeps its gradients elsewhere. A
gradient may be shorter than the mean, by clipping or a loss scale, but not longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.sampling import Replicas, Sampled, before_step, values

NEAR = 5e-3
"""How far (as a fraction) a gradient may be from the mean, in fp32."""

COARSE = 5e-2
"""The same in bf16 and fp16."""


class Detector:
    """Compares the gradients at each step of an optimizer of torch."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group, self._replicas = group, Replicas(model)
        # Tensor parallelism adds what its ranks have of a gradient, instead of taking the mean.
        plain = isinstance(optimizer, torch.optim.Optimizer) and not self._replicas.split
        self._found = self._replicas.found if plain else []
        self._sums: list[Tensor | None] = [None] * len(self._found)
        self._used: list[Tensor | None] = [None] * len(self._found)
        for number, one in enumerate(self._found):
            one.parameter.register_hook(lambda grad, n=number: self._computed(n, grad))
        if self._found:
            before_step(optimizer, self._before)

    def _computed(self, number: int, gradient: Tensor) -> None:
        part, before = self._found[number].of(gradient), self._sums[number]
        self._sums[number] = part if before is None else before + part

    def _before(self) -> None:
        used = ((s, s.parameter.grad) for s in self._found)
        self._used = [None if g is None or g.is_sparse else s.of(g) for s, g in used]

    def step(self, number: int) -> str | None:
        sizes = [len(s.positions) for s in self._found]
        sums = [
            torch.full((n,), math.nan) if one is None else one
            for one, n in zip(self._sums, sizes, strict=True)
        ]
        computed = self._replicas.gathered(values(sums), self._group)
        self._sums = [None] * len(self._found)
        if not sizes:
            return None
        right = numpy.mean(computed, axis=0, dtype=numpy.float64)
        ends: Any = numpy.cumsum(sizes)[:-1]
        pairs = [
            (s, now.double().cpu().numpy(), mean)
            for s, now, mean in zip(self._found, self._used, numpy.split(right, ends), strict=True)
            if now is not None and numpy.isfinite(mean).all()
        ]
        self._used = [None] * len(self._found)
        largest = max(_length(one[numpy.isfinite(one)]) for one in computed)
        return self._compare(pairs, largest) if pairs else None

    def _compare(self, pairs: Sequence[tuple[Sampled, Any, Any]], largest: float) -> str | None:
        """``largest`` is the length of a rank's own gradient, to which rounding is in proportion:
        the mean of gradients that cancel each other is short."""
        used = numpy.concatenate([one for _, one, _ in pairs])
        right = numpy.concatenate([one for *_, one in pairs])
        if not (numpy.isfinite(used).all() and right.any()):
            return None
        near = NEAR if all(s.parameter.dtype == torch.float32 for s, *_ in pairs) else COARSE
        ratio = float(used @ right / (right @ right))
        rounding = near * max(_length(used), ratio * largest)
        if _length(used - ratio * right) > rounding or not used.any():
            worst = max(
                pairs, key=lambda pair: _length(pair[1] - pair[2]) / (_length(pair[2]) or 1)
            )
            name = worst[0].name
            return f"the step's gradient is not the mean of those that the ranks computed: {name}"
        if ratio > 1 + near:
            return f"the step's gradient is {ratio:.4g} times the mean of those that were computed"
        return None  # a shorter one may be clipped, or divided by the number of micro-batches


def _length(values_: Any) -> float:
    return float(numpy.linalg.norm(values_))
