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
    squared: bool
    """Whether all losses are squares of distances: half of one is usual, too."""
    weighted: bool
    """Whether micro-batches, or ranks, have different weights."""


def loss_count(views: Sequence[View]) -> LossCount | None:
    """How often a step counts the loss; None if that is not seen."""
    totals, counts, summed, weights = [], set(), True, []
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
        weights += (weight * count).tolist()
        counts.add(len(root))
        summed = summed and bool((count > 1).all())
    if len(counts) > 1:
        return None
    squared = all(view.post.squared for view in views)
    weighted = max(weights) - min(weights) > LOSS_NEAR * max(weights)
    return LossCount(sum(totals) / len(totals), counts.pop(), summed, squared, weighted)


def accumulation(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step counts the loss of each micro-batch once, as a part of their mean."""
    losses = loss_count(views)
    if losses is None:
        return
    total, micro, summed = losses.total, losses.micro, losses.summed
    is_split = any(together.table(view).columns.is_split for view in views)
    ranks = 1 if is_split else len(views)
    memory.compared["accumulation"] = micro
    memory.most_micro = max(memory.most_micro, micro)
    if micro < memory.most_micro:
        return  # the last group of an epoch may be short, and divided as the others are
    if losses.squared and abs(2 * total - 1) <= 2 * LOSS_NEAR:
        return  # half of a squared distance
    if any(abs(total * factor - 1) <= LOSS_NEAR for factor in (1, memory.factor)):
        return  # a reduction by sum makes up for a loss that is divided by the ranks
    who = [view.rank for view in views]
    sentence = f"the step counts the loss {total:.4g} times instead of once"
    before, memory.loss_count = memory.loss_count, total
    # A weight of the user's may grow: it has another value in the next step.
    stays = abs(total - before) <= LOSS_NEAR * total
    memory.steady = memory.steady + 1 if stays else 0
    is_sure = micro > 1 or memory.steady >= 2
    for name, factor in _factors(micro, ranks).items():
        if factor == ranks and any(view.post.gathers for view in views):
            continue  # with features of all ranks, each rank has a part of the gradient alone
        if factor != 1 and is_sure and abs(total - factor) <= 5 * LOSS_NEAR * factor:
            text = f"{sentence}: {name} ({micro} micro-batches, {ranks} ranks)"
            yield Alarm("accumulation", "weight", text, who, total)
            return
    # Another constant is the user's own weight of the loss. The Trainer divides sums itself.
    is_by_tokens = summed or memory.trainer or losses.weighted or micro > 1
    if (is_by_tokens and abs(total - 1) <= 0.1) or (memory.trainer and summed and 0.5 < total < 2):
        text = f"{sentence}: it is divided by another number of tokens than it has"
        yield Alarm("accumulation", "tokens", text, who, total)
        return
    for name, factor in _factors(micro, ranks).items():  # both at once, as in transformers 5.2
        if memory.trainer and summed and factor < 1 and abs(total - factor) <= TOKENS_NEAR * factor:
            yield Alarm("accumulation", "weight", f"{sentence}: about {name}", who, total)
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
