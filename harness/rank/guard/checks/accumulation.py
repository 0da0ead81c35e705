"""A step counts the loss of each micro-batch once, as a part of their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from . import together
from .views import Alarm, Memory, View

LOSS_NEAR = 1e-2
"""How far a loss's weight may be from 1: a weight in bf16 is off by 0.4 %."""

TOKENS_NEAR = 0.2
"""The same as a fraction, if the Trainer divides a sum of losses by tokens that it counts itself:
some releases count the first token of each row, too, which has no loss."""


@dataclass
class LossCount:
    """How often a step counts its loss, by the mean of the ranks."""

    total: float
    micro: int
    """Micro-batches of each rank."""
    summed: bool
    """Whether all losses are sums."""


def loss_count(views: Sequence[View]) -> LossCount | None:
    """How often a step counts the loss; None if that is not seen."""
    totals, counts, summed = [], set(), True
    for view in views:
        losses = view.post.tensors.get("losses")
        if losses is None or not len(losses):
            return None  # a loss that is not one of torch's functions alone
        root, value, weight, count, scale = losses.double().reshape(-1, 5).T
        root, weight = root / scale, weight / scale
        explained = (root - value * weight).abs() <= LOSS_NEAR * root.abs() + 1e-6
        if not torch.isfinite(root).all() or not explained.all():
            return None  # the loss has other terms
        totals.append(float((weight * count).sum()))
        counts.add(len(root))
        summed = summed and bool((count > 1).all())
    return LossCount(sum(totals) / len(totals), counts.pop(), summed) if len(counts) == 1 else None


def accumulation(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step counts the loss of each micro-batch once, as a part of their mean."""
    losses = loss_count(views)
    if losses is None:
        return
    total, micro, summed = losses.total, losses.micro, losses.summed
    is_split = any(together.layout(view).columns.is_split for view in views)
    ranks = 1 if is_split else len(views)
    memory.compared["accumulation"] = micro
    if any(abs(total * factor - 1) <= LOSS_NEAR for factor in (1, memory.factor)):
        return  # a reduction by sum makes up for a loss that is divided by the ranks
    who = [view.rank for view in views]
    said = f"the step counts the loss {total:.4g} times instead of once"
    for name, factor in _factors(micro, ranks).items():
        if factor != 1 and abs(total - factor) <= 5 * LOSS_NEAR * factor:
            text = f"{said}: {name} ({micro} micro-batches, {ranks} ranks)"
            yield Alarm("accumulation", "weight", text, who, total)
            return
    # Another constant is the user's own weight of the loss. The Trainer divides sums itself.
    if abs(total - 1) <= 0.1 or (memory.trainer and summed and 0.5 < total < 2):
        text = f"{said}: it is divided by another number of tokens than it has"
        yield Alarm("accumulation", "tokens", text, who, total)
        return
    for name, factor in _factors(micro, ranks).items():  # both at once, as in transformers 5.2
        if memory.trainer and summed and factor < 1 and abs(total - factor) <= TOKENS_NEAR * factor:
            yield Alarm("accumulation", "weight", f"{said}: about {name}", who, total)
            return


def _factors(micro: int, ranks: int) -> dict[str, float]:
    return {
        "as often as there are micro-batches": micro,
        "divided by the number of micro-batches": 1 / micro,
        "as often as there are ranks": ranks,
        "divided by the number of ranks": 1 / ranks,
        "as often as there are micro-batches on all ranks": micro * ranks,
        "divided by the number of micro-batches on all ranks": 1 / (micro * ranks),
        "divided twice by the number of micro-batches": 1 / micro**2,
    }
