"""A few values of each parameter, at positions that all ranks share.

A fault of training rarely hides in single values, so detectors look at a sample: up to ``SIZE``
values of each parameter, evenly apart. Looking at all of them would cost as much as a step of the
optimizer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

SIZE = 64
"""Values of each parameter."""


SHARDED = ("to_local", "ds_tensor", "_is_flat_param")
"""The attributes of shards of FSDP2 or tensor parallelism, of ZeRO 3 and of FSDP1."""


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
    """The trained parameters of a module that this rank has whole: no shards of FSDP, ZeRO 3 or
    tensor parallelism by DTensor."""
    for name, parameter in module.named_parameters():
        whole = not any(hasattr(parameter, mark) for mark in SHARDED)
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


@dataclass
class Scaling:
    """What GradScalers do with an optimizer's steps."""

    taken: int = 0
    """Steps that were not skipped. The one that is being taken counts already."""
    loss_scale: float = 1.0
    """What the loss of the last step was multiplied by."""
    skip: list[Callable[[], None]] = field(default_factory=list)
    """Called after a step that was skipped."""


_SCALINGS: WeakKeyDictionary[torch.optim.Optimizer, Scaling] = WeakKeyDictionary()


def scaling(optimizer: torch.optim.Optimizer) -> Scaling:
    """What GradScalers do with the steps of an optimizer, from the first call on."""
    if optimizer not in _SCALINGS:
        record = _SCALINGS[optimizer] = Scaling()

        def count(*_: Any) -> None:
            record.taken += not _overflowed(optimizer)

        optimizer.register_step_pre_hook(count)
        _watch_scalers()
    return _SCALINGS[optimizer]


def _overflowed(optimizer: Any) -> bool:
    """Whether the step that begins will change nothing: a fused step is called nevertheless."""
    return bool(getattr(optimizer, "found_inf", None))


def gradient_scale(optimizer: Any) -> float:
    """By how much a fused step itself divides the gradients; 1 if they were divided before."""
    return float(scale) if (scale := getattr(optimizer, "grad_scale", None)) is not None else 1.0


def _watch_scalers() -> None:
    """Let GradScalers report which steps they skip: no hook of an optimizer sees that."""
    kind: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    step = kind.step
    if getattr(step, "tells", False):
        return

    @functools.wraps(step)
    def watched_step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
        if not scaler.is_enabled() or optimizer not in _SCALINGS:
            return step(scaler, optimizer, *arguments, **keywords)
        record = _SCALINGS[optimizer]
        before, record.loss_scale = record.taken, scaler.get_scale()
        value = step(scaler, optimizer, *arguments, **keywords)
        if record.taken == before:
            for skip in record.skip:
                skip()
        return value

    watched_step.tells = True  # type: ignore[attr-defined]
    kind.step = watched_step


def before_step(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> None:
    """Call ``look`` when the gradients of a step are ready: before the step, or after its closure,
    as with Lightning. It is not called before a step that a GradScaler skips."""
    scaling(optimizer)

    def hook(_: Any, arguments: Any, keywords: Any) -> Any:
        closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
        if _overflowed(optimizer):
            return None
        if closure is None:
            look()
            return None

        def looked() -> Any:
            value = closure()
            look()
            return value

        return (optimizer, looked), {}

    optimizer.register_step_pre_hook(hook)


class Replicas:
    """The ranks that had the same trained parameters when a model was first seen.

    Ranks need not come here at the same time, as stages of a pipeline do not. So they ask each
    other only in ``gathered``, which all of them call after a step. Megatron marks what tensor
    parallelism splits; the rest must then be equal.
    """

    def __init__(self, module: nn.Module) -> None:
        sampled = list(samples(module))
        split = [getattr(s.parameter, "tensor_model_parallel", False) for s in sampled]
        self.split = any(split) or tensor_parallel() is not None
        """Whether tensor parallelism splits others."""
        self.found = [s for s, is_split in zip(sampled, split, strict=True) if not is_split]
        self._first = values(s.bits() for s in self.found)
        self._ranks: list[int] | None = None

    def gathered(self, mine: numpy.ndarray, group: dist.ProcessGroup | None) -> list[numpy.ndarray]:
        """The values of the ranks with the same copies, this rank included. A collective call."""
        if self._ranks is None:
            names = [(s.name, tuple(s.parameter.shape)) for s in self.found]
            every = from_all((names, self._first.tobytes()), group)
            ours = every[_rank(group)]
            self._ranks = [rank for rank, theirs in enumerate(every) if theirs == ours]
        every = from_all(mine, group)
        return [every[rank] for rank in self._ranks]


def tensor_parallel() -> dist.ProcessGroup | None:
    """Megatron's group of the ranks that split tensors; None without one of several ranks."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    group: dist.ProcessGroup = state.get_tensor_model_parallel_group()
    return group if dist.get_world_size(group) > 1 else None


def values(tensors: Iterable[Tensor]) -> numpy.ndarray:
    """The values of some tensors, one after the other, in fp32."""
    parts = [tensor.detach().float().cpu().numpy() for tensor in tensors]
    return numpy.concatenate(parts) if parts else numpy.zeros(0, numpy.float32)


def from_all(mine: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """What each rank of the group passes. A collective call."""
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    return every


def _rank(group: dist.ProcessGroup | None) -> int:
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0
