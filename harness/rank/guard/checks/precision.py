"""Weights in 16 bits take part in a step: it is not lost in their rounding.

Such a weight does not move by less than half a unit in its last place. Optimizers keep copies in
fp32 therefore, or round at random: then some weights move, however short the step is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ....detectors.arithmetic import MOVED, count_moved
from ..posting.posts import Alarm
from .stacked_updates import Updates, stacked
from .views import Memory, Rate, View, named

DIGITS = {"bfloat16": 8, "float16": 11}
"""Of a weight's mantissa, in bits."""
FEW = 64
"""Sampled values from which on it is a fault that less than half of them move; of fewer, less than
a quarter. If three quarters of the weights move, each has a chance of 5 in a million (binomial);
less than half of 16 values move in 0.7 % of the checks."""
RANKS = 16
"""Ranks that are looked at: all of them round alike."""
ROW = 3
"""Checks in a row that are too many, ..."""
DENSE = 0.5
"""... if they looked at ``FEW`` values together, or if so many of the sampled ones have a gradient.
Of rare words few have one, and some steps of these are short: track 3 of modded-nanogpt had an
alarm by one value of an embedding in each of three checks."""
AT_RANDOM = 9.0
"""The same if hooks of the loop may round at random, and would have moved so many weights: that it
moves none has a chance of exp(-9), or 0.01 % (Poisson). Torch's optimizers round to the
nearest value. Three weights in each of three checks were more than a model of ten weights ever
had."""


def precision(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Weights in 16 bits take part in a step: it is not lost in their rounding."""
    for view in views[:RANKS]:
        dtypes = view.described.columns.dtypes
        types = {dtypes[update.parameter] for update in view.post.parameters.updates}
        if types.isdisjoint(DIGITS):
            continue
        updates = [one for one in stacked([view]) if one.dtype in DIGITS]
        still = None if view.post.loop.fused_scale else _still(updates, view, memory)
        row = memory.weights.still.setdefault(view.rank, [])
        least = AT_RANDOM if view.post.loop.hooked else 0.0
        was_told = _is_told(row, least)
        row[:] = [*row, still] if still is not None else []
        if still is not None and _is_told(row, least) and not was_told:
            yield _alarm(view, still, len(row))


def _is_told(row: Sequence[Still], least: float) -> bool:
    values, sampled = sum(one.total for one in row), sum(one.sampled for one in row)
    has_many = values >= FEW or values >= DENSE * sampled
    return len(row) >= ROW and has_many and sum(one.at_random for one in row) >= least


@dataclass
class Still:
    """A step that moved too few weights, and none that only a rounding at random could move."""

    moved: int
    total: int
    sampled: int
    """With those that have no gradient."""
    dtype: str
    names: list[str]
    """The parameters of which nothing moved."""
    at_random: float
    """How many weights a rounding at random would have moved."""


def _still(updates: Sequence[Updates], view: View, memory: Memory) -> Still | None:
    if updates and all(update.expected is None for update in updates):
        kind = view.post.parameters.kind
        memory.not_seen["precision"] = f"whether {kind} moves weights in 16 bits is not checked"
    compared = _at_full_rate(view, updates, memory)
    parts = {
        view.described[number].name: [mask[0, at] for mask in masks]
        for update in compared
        for masks in [_masks(update)]
        for at, number in enumerate(update.numbers)
    }
    moved_count, total = count_moved((moves, has) for moves, has, *_ in parts.values())
    short_moved = sum(int((moves & short).sum()) for moves, _, short, _ in parts.values())
    at_random = sum(float(share[short].sum()) for _, _, short, share in parts.values())
    if updates:
        memory.compared["precision"] = len(parts)
    most = (MOVED if total >= FEW else MOVED / 2) * total
    if not total or moved_count >= most or short_moved:
        return None
    names = [name for name, (moves, has, *_) in parts.items() if not bool((moves & has).any())]
    sampled = sum(has.numel() for _, has, *_ in parts.values())
    return Still(moved_count, total, sampled, compared[0].dtype, names, at_random)


def _alarm(view: View, still: Still, row: int) -> Alarm:
    where = f", and none of {named(still.names)}" if still.names else ""
    text = (
        f"{row} checked steps in a row moved too few of the weights that have a gradient, "
        f"the last one {still.moved} of {still.total} values{where}: "
        f"{still.dtype} rounds their steps away, and no copy in fp32 is trained"
    )
    share = still.moved / still.total
    return Alarm("precision", "still", text, [view.rank], share, still.names)


def _at_full_rate(view: View, updates: Sequence[Updates], memory: Memory) -> list[Updates]:
    """The updates whose formula is known, and whose rate does not warm up and is not at its end:
    there, a step that is too short is right."""
    before = memory.weights.rates.get(view.rank, {})
    rates: dict[str, Rate] = {}
    settings = [str({k: v for k, v in update.group.items() if k != "lr"}) for update in updates]
    for update, group in zip(updates, settings):
        rate, rate_before = rates.get(group), before.get(group)
        latest = max(update.rate, rate.last if rate else 0.0)
        rates[group] = Rate(latest, max(latest, rate_before.highest if rate_before else 0.0))
    memory.weights.rates[view.rank] = {**before, **rates}
    return [
        update
        for update, group in zip(updates, settings)
        if update.expected is not None
        and group in before
        and rates[group].highest / 2 <= update.rate <= before[group].last
    ]


def _masks(update: Updates) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where the step moved a weight; where the formula moves it, by a gradient; where by less than
    a quarter of a unit in the last place; and by which share of such a unit."""
    assert update.expected is not None  # noqa: S101
    weight, step = update.weight, update.expected
    has = (update.gradient != 0) & (step != 0) & torch.isfinite(step) & (weight != 0)
    _, exponent = torch.frexp(weight)
    unit = torch.ldexp(torch.ones_like(weight), exponent - DIGITS[update.dtype])
    share = step.abs() / unit
    return update.moved != 0, has, has & (share < 0.25), share
