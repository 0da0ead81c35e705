"""The steps of an optimizer, as detectors see them: when the gradients are ready, what a GradScaler
does with them, and what the other ranks have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def gradient_scale(optimizer: Any) -> float:
    """By how much a fused step itself divides the gradients; 1 if they were divided before."""
    return float(scale) if (scale := getattr(optimizer, "grad_scale", None)) is not None else 1.0


def before_step(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> None:
    """Call ``look`` when the gradients of a step are ready: before the step, or after its closure,
    as with Lightning. It is not called before a step that a GradScaler skips."""

    def hook(_: Any, arguments: Any, keywords: Any) -> Any:
        closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
        if getattr(optimizer, "found_inf", None):  # a fused step is called nevertheless
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


def from_all(mine: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """What each rank of the group passes. A collective call."""
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    return every
