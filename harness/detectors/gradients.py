"""The gradient that the optimizer uses must be the mean of what the ranks computed.

Each rank adds up its micro-batches' gradients; data parallelism then takes the mean over the ranks.
Many bugs apply another one: a rank's own, the last micro-batch's, or one that was zeroed in
between. The loss hardly shows it. This looks at a few values of each parameter as they come out of
the backward pass, before any reduction, and at what the optimizer used.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass, on every rank
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

The mean is taken over the ranks that had the same weights at first. Parameters that a rank has only
a shard of are left out. With DeepSpeed's ZeRO 1 and 2 and its optimizer for bf16, each rank looks
at the part that it updates; weights that stages of a pipeline share are left out. A gradient may
be shorter than the mean, by clipping or a loss scale, but not longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.arithmetic import projection
from harness.detectors.sampling import Replicas, Sampled, before_step, scaling, values
from harness.detectors.state import master_copies

NEAR = 5e-3
"""How far (as a fraction) a gradient may be from the mean, in fp32."""

COARSE = 5e-2
"""The same in bf16 and fp16."""


class Detector:
    """Compares the gradients at each step of an optimizer of torch, or of DeepSpeed around one."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group, self._replicas = group, Replicas(model)
        self._base = _base(optimizer)
        copies = ((id(p), copy) for p, copy in master_copies(optimizer))
        self._copies = {key: copy for key, copy in copies if copy.requires_grad}
        # Tensor parallelism adds what its ranks have of a gradient, instead of taking the mean.
        compared = self._base is not None and not self._replicas.split
        self._found = [s for s in self._replicas.found if compared and self._averaged(s, optimizer)]
        self._sums: list[Tensor | None] = [None] * len(self._found)
        self._used: list[Tensor | None] = [None] * len(self._found)
        for number, sample in enumerate(self._found):
            sample.parameter.register_hook(lambda grad, n=number: self._computed(n, grad))
        if self._base is not None and self._found:
            before_step(self._base, self._before)
            scaling(self._base).skip.append(self._forget)

    def _averaged(self, sample: Sampled, optimizer: Any) -> bool:
        """Whether the step's gradient of a parameter is the ranks' mean, and can be found."""
        shared = (
            "tied_modules." in sample.name or getattr(sample.parameter, "allreduce", True) is False
        )
        is_reachable = optimizer is self._base or id(sample.parameter) in self._copies
        return (is_reachable or hasattr(sample.parameter, "_hp_mapping")) and not shared

    def _computed(self, number: int, gradient: Tensor) -> None:
        part, before = self._found[number].of(gradient), self._sums[number]
        self._sums[number] = part if before is None else before + part

    def _forget(self) -> None:
        """Forget a skipped step: no other step uses its gradients."""
        self._sums = [None] * len(self._found)

    def _before(self) -> None:
        self._used = [self._gradient(sample) for sample in self._found]

    def _gradient(self, sample: Sampled) -> Tensor | None:
        """The gradient that the optimizer uses, at the sample; nan where this rank does not have
        it."""
        mapping = getattr(sample.parameter, "_hp_mapping", None)
        if mapping is None and hasattr(sample.parameter, "_hp_mapping"):
            return None  # another rank updates all of it
        if mapping is None:
            grad = self._copies.get(id(sample.parameter), sample.parameter).grad
            return None if grad is None or grad.is_sparse else sample.of(grad)
        part, address = mapping.hp_fragment, mapping.lp_fragment_address
        whole, offset = _within(part, self._base)
        if whole is None or whole.grad is None:
            return None
        at = sample.positions.cpu() - address.start
        inside = (at >= 0) & (at < address.numel)
        gradient = torch.full((len(at),), math.nan)
        places = (offset + at[inside]).to(whole.grad.device)
        gradient[inside] = whole.grad.reshape(-1)[places].float().cpu()
        return gradient

    def step(self, number: int) -> str | None:
        sizes = [len(s.positions) for s in self._found]
        sums = [
            torch.full((n,), math.nan) if sample is None else sample
            for sample, n in zip(self._sums, sizes, strict=True)
        ]
        computed = self._replicas.gathered(values(sums), self._group)
        self._forget()
        if not sizes:
            return None
        expected = numpy.mean(computed, axis=0, dtype=numpy.float64)
        ends: Any = numpy.cumsum(sizes)[:-1]
        pairs = []
        for sample, gradient, mean in zip(
            self._found, self._used, numpy.split(expected, ends), strict=True
        ):
            if gradient is not None and numpy.isfinite(mean).all():
                actual = gradient.double().cpu().numpy()
                has = (
                    ~numpy.isnan(actual)
                    if hasattr(sample.parameter, "_hp_mapping")
                    else slice(None)
                )
                pairs.append((sample, actual[has], mean[has]))
        self._used = [None] * len(self._found)
        largest = max(_norm(sample[numpy.isfinite(sample)]) for sample in computed)
        return self._compare(pairs, largest) if pairs else None

    def _compare(self, pairs: Sequence[tuple[Sampled, Any, Any]], largest: float) -> str | None:
        """``largest`` is the length of the longest gradient of a rank. Rounding is in proportion to
        it: the mean of gradients that cancel each other is short."""
        actual = numpy.concatenate([part for _, part, _ in pairs])
        expected = numpy.concatenate([part for *_, part in pairs])
        if not (numpy.isfinite(actual).all() and expected.any()):
            return None
        near = NEAR if all(s.parameter.dtype == torch.float32 for s, *_ in pairs) else COARSE
        part = projection(actual, expected)
        if part.beside > near * max(part.got, part.ratio * largest) or not part.got:
            worst = max(pairs, key=lambda pair: _norm(pair[1] - pair[2]) / (_norm(pair[2]) or 1))
            name = worst[0].name
            return f"the step's gradient is not the mean of those that the ranks computed: {name}"
        if part.ratio > 1 + near:
            times = f"{part.ratio:.4g} times"
            return f"the step's gradient is {times} the mean of those that were computed"
        return None  # a shorter one may be clipped, or divided by the number of micro-batches


def _base(optimizer: Any) -> torch.optim.Optimizer | None:
    """The optimizer of torch that takes the step, also within DeepSpeed's."""
    while optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


def _within(part: Tensor, optimizer: Any) -> tuple[Tensor | None, int]:
    """The optimizer's tensor that contains a part, and the part's offset in it, in values."""
    for group in optimizer.param_groups:
        for whole in group["params"]:
            offset = (part.data_ptr() - whole.data_ptr()) // whole.element_size()
            if 0 <= offset < whole.numel() and part.device == whole.device:
                return whole, offset
    return None, 0


def _norm(vector: Any) -> float:
    return float(numpy.linalg.norm(vector))
