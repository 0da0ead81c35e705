"""The fp32 masters of DeepSpeed's engine. Imports torch: import it inside ``run``."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def full(engine: Any) -> dict[str, Tensor]:
    """A copy of all ranks' fp32 masters, or of the weights if there are none; a collective call."""
    from deepspeed.utils import safe_get_full_fp32_param

    parameters = dict(engine.module.named_parameters())
    unfused = getattr(engine.optimizer, "fp32_groups", None)
    if unfused is not None:  # the optimizer without ZeRO has a list for each group of parameters
        flat = [master for group in unfused for master in group]
        return {n: m.detach().clone() for n, m in zip(parameters, flat, strict=True)}
    by_name = {name: safe_get_full_fp32_param(p) for name, p in parameters.items()}
    return {n: (parameters[n] if f is None else f).detach().clone() for n, f in by_name.items()}
