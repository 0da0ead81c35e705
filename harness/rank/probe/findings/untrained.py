"""The weights that no step trains: two environments may load or draw other ones."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from harness.rank.probe.recording.parameters import full
from harness.rank.probe.recording.shards import assembled

SAMPLED = 1000
"""About how many values of a weight are compared: they are enough to see that it is another one."""


def recorded(
    parameters: Iterable[tuple[str, Any]], complete: Collection[str]
) -> dict[str, dict[str, Any]]:
    """By name, a sample of each weight and its shape, and all values of the complete ones. Only
    rank 0 keeps them. The others only take part in the collectives that a DTensor needs."""
    keeps = int(os.environ.get("RANK", 0)) == 0
    samples: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, parameter in parameters:
        if not parameter.is_floating_point() or parameter.is_meta:
            continue
        if not (keeps or hasattr(parameter, "full_tensor")):
            continue
        taken = sample(parameter)
        whole = full(parameter) if name in complete else None
        if keeps:
            samples[name] = [taken, list(parameter.shape)]
            values |= {} if whole is None else {name: whole}
    return {"untrained": samples, "complete": values}


def sample(tensor: Any) -> Any:
    """Some values of a tensor, in fp32 on the CPU; a collective for a DTensor. They have an odd
    distance from each other, so that they are not those of one column."""
    import torch

    whole = assembled(tensor.detach())
    flat = (whole if whole.layout is torch.strided else whole.to_dense()).reshape(-1)
    return flat[:: (flat.numel() // SAMPLED) | 1].to("cpu", torch.float32, copy=True)
