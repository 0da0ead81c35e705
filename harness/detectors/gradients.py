"""The gradient that the optimizer uses must be the mean of what the ranks computed.

Each rank adds up its micro-batches' gradients; data parallelism then takes the mean over the ranks.
Many bugs apply another one: a rank's own, the last micro-batch's, or one that was zeroed in
between. The loss hardly shows it. This looks at a few values of each parameter as they come out of
the backward pass, before any reduction, and at what the optimizer finds.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass, on every rank
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

Parameters of which a rank has only a shard are left out, and so is DeepSpeed, whose engine keeps
its gradients elsewhere. Clipping shortens a gradient by another factor in each step, and a loss
scale by a power of two: both are recognised.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.sampling import Replicated, Sampled, mean_over_ranks, samples

NEAR = 5e-3
"""How far (as a fraction) a gradient may be from the mean, in fp32."""

COARSE = 5e-2
"""The same in bf16 and fp16."""

SCALE = 8
"""A gradient that is 2**-8 or less of what was computed was computed with a scaled loss."""


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
        self._group = group
        self._replicated = Replicated(model)
        self._found: list[Sampled] = []
        self._used: list[Tensor | None] = []
        self._short: float | None = None
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        self._found = list(samples(model))
        self._sums: list[Tensor | None] = [None] * len(self._found)
        for number, one in enumerate(self._found):
            one.parameter.register_hook(lambda grad, n=number: self._computed(n, grad))
        optimizer.register_step_pre_hook(self._before)

    def _computed(self, number: int, gradient: Tensor) -> None:
        part, before = self._found[number].of(gradient), self._sums[number]
        self._sums[number] = part if before is None else before + part

    def _before(self, *_: Any) -> None:
        used = ((s, s.parameter.grad) for s in self._found)
        self._used = [None if g is None or g.is_sparse else s.of(g) for s, g in used]

    def step(self, number: int) -> str | None:
        if not self._found:
            return None
        same = {s.name for s in self._replicated.among(self._group)}
        kept = [n for n, s in enumerate(self._found) if s.name in same]
        sums, used = [self._sums[n] for n in kept], [self._used[n] for n in kept]
        found = [self._found[n] for n in kept]
        self._sums = [None] * len(self._found)
        if not found:
            return None
        zeros = [torch.zeros(len(s.positions)) for s in found]
        none = torch.tensor([float(one is None) for one in sums])
        whole = [z if one is None else one for one, z in zip(sums, zeros, strict=True)]
        right = mean_over_ranks(torch.cat([*whole, none]).to(whole[0].device), self._group)
        parts = right.split([len(z) for z in zeros] + [len(none)])
        pairs = [
            (s.name, now, mean)
            for s, now, mean, missing in zip(found, used, parts, parts[-1].tolist(), strict=False)
            if now is not None and missing < 1
        ]
        return self._compare(pairs) if pairs else None

    def _compare(self, pairs: list[tuple[str, Tensor, Tensor]]) -> str | None:
        used = torch.cat([one.double() for _, one, _ in pairs])
        right = torch.cat([one.double() for *_, one in pairs])
        if not (bool(used.isfinite().all()) and float(right.norm())):
            return None
        coarse = any(s.parameter.dtype != torch.float32 for s in self._found)
        near = COARSE if coarse else NEAR
        ratio = float(used @ right / (right @ right))
        if float((used - ratio * right).norm()) > near * float(used.norm()) or not float(
            used.norm()
        ):
            name = max(pairs, key=lambda pair: _distance(pair[1], pair[2]))[0]
            return f"the step's gradient is not the mean of those that the ranks computed: {name}"
        if ratio > 1 + near:
            return f"the step's gradient is {ratio:.4g} times the mean of those that were computed"
        return self._always_short(ratio, near)

    def _always_short(self, ratio: float, near: float) -> str | None:
        """An alarm if the gradient is shorter by the same factor as in the step before."""
        before, self._short = self._short, ratio
        scaled = math.log2(ratio) <= -SCALE if ratio > 0 else False
        if ratio > 1 - near or scaled or before is None or abs(ratio / before - 1) > 1e-4:
            return None
        return f"each step's gradient is {ratio:.4g} times the mean of those that were computed"


def _distance(used: Tensor, right: Tensor) -> float:
    norm = float(right.norm())
    return float((used - right).norm()) / norm if norm else 0.0
