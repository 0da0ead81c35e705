"""What is read of an optimizer: its class, its hooks, and the settings of its groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOMENTS = {"SGD": ("momentum_buffer",), "Adam": ("exp_avg", "exp_avg_sq")}
MOMENTS["AdamW"] = MOMENTS["Adam"]

FUSED = "deepspeed.ops.adam.fused_adam.FusedAdam"
ADAMS = (FUSED, "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam")
"""Classes of DeepSpeed with the formula of Adam, or of AdamW."""
MUON = "deepspeed.runtime.zero.muon.muon_optimizer.MuonWithAuxAdam"


def kind_of(optimizer: Any) -> str:
    """The class of an optimizer: by a name of torch only if it has the formula of that, as the
    formulas are known by these names."""
    kind = type(optimizer)
    if kind is getattr(torch.optim, kind.__name__, None):
        return kind.__name__
    name = _full_name(optimizer)
    if name in ADAMS and all(group.get("bias_correction") for group in optimizer.param_groups):
        return "AdamW" if getattr(optimizer, "adam_w_mode", True) else "Adam"
    return name


def step_count(optimizer: Any, group: dict[str, Any], parameter: Any) -> Any:
    """How many steps an optimizer has counted, by which it corrects the moments of a parameter.
    DeepSpeed's fused Adam counts those of a group at the last parameter that has a gradient."""
    if _full_name(optimizer) == FUSED:
        parameter = [one for one in group["params"] if one.grad is not None][-1]
    return optimizer.state.get(parameter, {}).get("step", 0)


def instead_of_gradients(optimizer: Any) -> str:
    """What an optimizer is given in the place of gradients, on purpose; empty if it has these.

    ZeRO calls Muon's iteration itself, and gives DeepSpeed's Muon flat parts of its result. At
    stage 3 the groups have them during a step only."""
    if _full_name(optimizer) != MUON:
        return ""
    groups = [group["params"] for group in optimizer.param_groups if group.get("use_muon")]
    if all(params and all(one.dim() >= 2 for one in params) for params in groups):
        return ""
    return "what ZeRO gives Muon in the place of a gradient"


def _full_name(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


def has_constructed_any() -> bool:
    """Whether an optimizer was constructed in this process: torch marks the step of its class."""
    kinds = list(torch.optim.Optimizer.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
    return any(getattr(kind.step, "hooked", False) for kind in kinds)


def is_constructed(optimizer: Any) -> bool:
    """Whether torch constructed it. accelerate's wrapper is an optimizer by its class alone."""
    return "_optimizer_step_pre_hooks" in vars(optimizer)


def has_own_hooks(optimizer: Any) -> bool:
    """Whether the loop has hooks around the optimizer's step, which may change all that it uses."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return any(getattr(optimizer, name, None) for name in names)


def is_on_device(value: Any) -> bool:
    """Whether a value is a tensor of another device: to read it would wait."""
    return isinstance(value, Tensor) and value.device.type != "cpu"


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group that are numbers."""
    parts = {name: one if isinstance(one, tuple) else (one,) for name, one in group.items()}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if name != "params" and all(isinstance(part, (int, float)) for part in parts[name])
    }
