"""A few values of each parameter, at positions that all ranks share.

A fault of training rarely hides in single values, so detectors look at a sample: up to ``SIZE``
values of each parameter, evenly apart. Looking at all of them would cost as much as a step of the
optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SIZE = 64
"""Values of each parameter."""


@dataclass(frozen=True)
class Sampled:
    """A parameter and the positions at which it is looked at."""

    name: str
    parameter: Tensor
    positions: Tensor

    def of(self, tensor: Tensor) -> Tensor:
        """The sample of a tensor with the parameter's shape, as a copy, in fp32."""
        return tensor.detach().reshape(-1)[self.positions].float()

    def moved(self, number: int) -> Sampled:
        """The same parameter at other positions, which depend on a number."""
        every = max(1, self.parameter.numel() // len(self.positions))
        return replace(self, positions=self.positions + number % every)

    def bits(self) -> Tensor:
        """The sample of the parameter itself, in its own type."""
        return self.parameter.detach().reshape(-1)[self.positions]


def samples(module: nn.Module, size: int = SIZE) -> Iterator[Sampled]:
    """What is trained of a module, if this rank has it whole: no shards of FSDP, ZeRO 3 or tensor
    parallelism by DTensor."""
    for name, parameter in module.named_parameters():
        whole = not (hasattr(parameter, "to_local") or hasattr(parameter, "ds_tensor"))
        if (
            whole
            and parameter.requires_grad
            and parameter.is_floating_point()
            and parameter.numel()
        ):
            count = parameter.numel()
            every = max(1, count // size)
            positions = torch.arange(0, count - every + 1, every, device=parameter.device)[:size]
            yield Sampled(name, parameter, positions)


class Replicated:
    """Those parameters of which all ranks had the same copy when they were first seen.

    Ranks need not come here at the same time, as stages of a pipeline do not. So they ask each
    other only in ``among``, which all of them call after a step.
    """

    def __init__(self, module: nn.Module, share: float = 0.9) -> None:
        self._share = share
        self._found = list(samples(module))
        self._first = [one.bits().float() for one in self._found]
        self._known: list[Sampled] | None = None

    def among(self, group: dist.ProcessGroup | None) -> list[Sampled]:
        """A collective call. Empty if the ranks have other parameters, as stages of a pipeline
        have, and if less than ``share`` of the values are equal: equal ones are then equal by
        chance, such as the ones of a layer norm. Megatron marks what tensor parallelism splits;
        then the others count."""
        if self._known is None:
            self._known = self._ask(group)
        return self._known

    def _ask(self, group: dist.ProcessGroup | None) -> list[Sampled]:
        mine: Any = [(s.name, tuple(s.parameter.shape)) for s in self._found]
        every: list[Any] = [mine] * _world(group)
        if len(every) > 1:
            dist.all_gather_object(every, mine, group=group)
        if not mine or any(one != mine for one in every):
            return []
        marked = [getattr(s.parameter, "tensor_model_parallel", False) for s in self._found]
        if any(marked):
            return [s for s, split in zip(self._found, marked, strict=True) if not split]
        same = equal_everywhere(torch.cat(self._first), group)
        parts = same.split([len(first) for first in self._first])
        equal = [s for s, part in zip(self._found, parts, strict=True) if bool(part.all())]
        whole = sum(s.parameter.numel() for s in self._found)
        return equal if sum(s.parameter.numel() for s in equal) >= self._share * whole else []


def equal_everywhere(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Which of these values are the same bits on all ranks. A collective call."""
    if _world(group) == 1:
        return torch.ones_like(values, dtype=torch.bool)
    copies = [torch.empty_like(values) for _ in range(_world(group))]
    dist.all_gather(copies, values, group=group)
    bits = [copy.view(torch.int32) for copy in copies]
    return torch.stack([one == bits[0] for one in bits]).all(dim=0)


def mean_over_ranks(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The mean of a tensor over the ranks. A collective call."""
    if _world(group) == 1:
        return values
    total = values.clone()
    dist.all_reduce(total, group=group)
    return total / _world(group)


def _world(group: dist.ProcessGroup | None) -> int:
    ready = dist.is_available() and dist.is_initialized()
    return dist.get_world_size(group) if ready else 1
