"""The weights that a file gets, beside those that are trained and those of the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...training.parameters import Watched
from ..sampling.samples import bit_sum
from .training_states import Part, TrainingState, leaves

FILE, FIRST, LIVE, VALUES = "file", "first", "live", "values"
"""Kinds of parts: the bits of a weight in the file, at the beginning and now, and how many of its
values in the file are finite and not zero."""
MAIN = ("", "state_dict.", "model_state_dict.", "model.", "module.")
"""Where a file has the weights of its model: others may be an average, or a reference."""
SAMPLE = 4096
"""About so many values of a weight are looked at: of an empty file all are 0 or not finite."""


def written_weights(
    event: str, step: int, path: str, watched: Sequence[Watched], first: Tensor, content: Any
) -> tuple[TrainingState, list[tuple[Part, Tensor]]] | None:
    """What a file gets as the weights of the whole model; None if it gets something else. ``first``
    has the bit sums of all weights at the beginning, or nothing if this rank has but a part."""
    found = leaves(content, "param_groups")
    first_numbers: dict[str, int] = {}  # another model of the process may have the same names
    for number, one in enumerate(watched):
        if one.described.optimized:
            first_numbers.setdefault(one.described.name, number)
    names = {number: watched[number].described for number in first_numbers.values()}
    sizes = {
        path: tensor.numel()
        for path, tensor in found.items()
        if type(tensor) in (Tensor, torch.nn.Parameter)
    }
    places = (
        place for place in MAIN if all(sizes.get(place + d.name) == d.numel for d in names.values())
    )
    place = next(places, None)
    if place is None or not names:
        return None
    pairs: list[tuple[Part, Tensor]] = []
    for number, described in names.items():
        tensor, live = found[place + described.name].detach(), watched[number].copy
        some = tensor.reshape(-1)[:: max(1, tensor.numel() // SAMPLE)]
        numbers = {VALUES: (torch.isfinite(some) & (some != 0)).sum()}
        is_of_model = tensor.data_ptr() == live.data_ptr()
        if len(first) and tensor.dtype == live.dtype and not is_of_model:
            numbers |= {FILE: bit_sum(tensor), FIRST: first[number], LIVE: bit_sum(live)}
        pairs += [(Part(described.name, kind, "", 1, "int64", 8), n) for kind, n in numbers.items()]
    return TrainingState(event, step, path), pairs
