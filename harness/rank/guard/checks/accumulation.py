"""A step counts the loss of each micro-batch once, as a part of their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from ..posting.posts import Alarm
from ..sentences import number_of
from .views import Memory, View

LOSS_NEAR = 1e-2
"""How far a loss's weight may be from 1: bf16 rounds it by up to 0.4 %. A Trainer that counts the
first label of a row, too, is 3 % off in rows of 32, as with ``run_clm.py``, and is not seen in rows
of 100 or more."""

TOKENS_NEAR = 0.2
"""The same as a fraction, if the Trainer divides a sum of losses by tokens that it counts itself.
transformers 5.2.0 counts the first token of each row, too, which has no loss, and divides twice:
two micro-batches count 0.436 times instead of 0.5, which no alarm told."""


MEANS = 2
"""Checks in a row in which the optimizer uses the mean of the ranks' gradients, for an alarm that
counts ranks. Of a sum that a loop clips to half of its length, one check shows the mean by chance
(the right loop ``reductions.sharded_summed_and_clipped``, after torchtitan's own)."""


@dataclass
class LossCount:
    """How often a step counts its loss, by the mean of the ranks."""

    total: float
    micro: int
    """Micro-batches of each rank."""
    summed: bool
    """Whether all losses are sums."""
    weighted: bool
    """Whether micro-batches, or ranks, have different weights."""
    whole: bool
    """Whether the losses are whole ones, of which a constant may be the user's own."""
    has_terms: bool
    """Whether the losses have other terms."""


def loss_count(views: Sequence[View]) -> LossCount | None:
    """How often a step counts the loss; None if that is not seen, or if it has other terms."""
    count = _count_of_function(views)
    return None if count is None or count.has_terms else count


def _count_of_function(views: Sequence[View]) -> LossCount | None:
    """How often a step counts the value of torch's function in its loss."""
    totals, counts, summed, weights, has_terms = [], set(), True, [], False
    for view in views:
        losses = view.post.tensors.get("losses")
        if losses is None or not len(losses):
            if view.post.losses.goes_on:
                continue  # another stage of the pipeline has the loss
            return None  # a loss that is not one of torch's functions alone
        root, value, weight, count, scale = losses.double().reshape(-1, 5).T
        root, weight = root / scale, weight / scale
        explained = (root - value * weight).abs() <= LOSS_NEAR * root.abs() + 1e-6
        if not torch.isfinite(root).all():
            return None
        has_terms = has_terms or not bool(explained.all())
        totals.append(float((weight * count).sum()))
        weights += (weight * count).tolist()
        counts.add(len(root))
        summed = summed and bool((count > 1).all())
    if len(counts) != 1:
        return None
    weighted = max(weights) - min(weights) > LOSS_NEAR * max(weights)
    whole = any(view.post.losses.whole_losses for view in views)
    total = sum(totals) / len(totals)
    return LossCount(total, counts.pop(), summed, weighted, whole, has_terms)


def accumulation(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step counts the loss of each micro-batch once, as a part of their mean."""
    yield from _stages(views)
    losses = _count_of_function(views)
    if losses is None:
        memory.losses.uncounted = next(
            (one.post.losses.uncounted for one in views if one.post.losses.uncounted), "none"
        )
        return
    total, micro, summed = losses.total, losses.micro, losses.summed
    is_split = any(view.described.columns.is_split for view in views)
    ranks = 1 if is_split else len(views)
    memory.losses.has_terms = memory.losses.has_terms or losses.has_terms
    if memory.trainer:  # also if they are small: the graph has them
        yield from _other_terms(views, losses, ranks)
    if memory.losses.has_terms:  # a term that is almost 0 in this step is one, too
        memory.losses.uncounted = "terms"
        return
    memory.losses.uncounted = ""
    has_factor = memory.gradients.has_factor and bool(memory.compared.get("gradients"))
    is_mean = has_factor and abs(memory.gradients.factor - 1) <= LOSS_NEAR
    memory.losses.means = memory.losses.means + 1 if is_mean else 0
    memory.compared["accumulation"] = micro
    memory.losses.most_micro = max(memory.losses.most_micro, micro)
    yield from _early(views, losses, memory)
    if micro < memory.losses.most_micro:
        return  # the last group of an epoch may be short, and divided as the others are
    if any(abs(total * factor - 1) <= LOSS_NEAR for factor in (1, memory.gradients.factor)):
        yield from _uneven(views, losses, memory)
        return  # a reduction by sum makes up for a loss that is divided by the ranks
    is_of_package = losses.whole or any(view.post.losses.goes_on for view in views)
    if is_of_package and not has_factor:
        return  # it may divide the gradients later
    who = [view.rank for view in views]
    sentence = f"the step counts the loss {total:.4g} times instead of once"
    before, memory.losses.loss_count = memory.losses.loss_count, total
    # A weight of the user's may grow: it has another value in the next step.
    stays = abs(total - before) <= LOSS_NEAR * total
    memory.losses.steady = memory.losses.steady + 1 if stays else 0
    is_sure = micro > 1 or memory.losses.steady >= 2
    factors = {
        name: float(Fraction(micro) ** k * Fraction(ranks) ** r)  # equal ones stay equal
        for name, (k, r, _) in FACTORS.items()
    }
    possible = {name: factors[name] for name in (WHOLE if losses.whole else factors)}
    for name, factor in possible.items():
        names = [other for other in possible if possible[other] == factor]
        if factor == ranks and not losses.whole and any(view.post.losses.gathers for view in views):
            continue  # with features of all ranks, each rank has a part of the gradient alone
        # Of a loss that counts too little, a sum over the ranks may make up for it.
        is_of_ranks = any("ranks" in one for one in (names if factor < 1 else [name]))
        if is_of_ranks and 0 < memory.losses.means < MEANS:
            continue
        if factor != 1 and is_sure and abs(total - factor) <= 5 * LOSS_NEAR * factor:
            if reason := _why_unclear(views, losses, name, is_of_ranks, memory):
                memory.not_seen["weight"] = f"{sentence}: {reason}"
                return
            of = f"{number_of(micro, 'micro-batch', 'es')}, {number_of(ranks, 'rank')}"
            text = f"{sentence}: {FACTORS[name][-1]} ({of})"
            yield Alarm("accumulation", "weight", text, who, total, factors=names)
            return
    if losses.whole:
        return
    # Another constant is the loop's own weight. The Trainer divides sums itself.
    if memory.trainer and (abs(total - 1) <= 0.1 or (summed and 0.5 < total < 2)):
        text = f"{sentence}: it is divided by another number of tokens than it has"
        yield Alarm("accumulation", "tokens", text, who, total)
        return
    for name, factor in factors.items():  # both at once, as in transformers 5.2
        if memory.trainer and summed and factor < 1 and abs(total - factor) <= TOKENS_NEAR * factor:
            text = f"{sentence}: about {FACTORS[name][-1]}"
            yield Alarm("accumulation", "weight", text, who, total, factors=[name])
            return


def _why_unclear(
    views: Sequence[View], losses: LossCount, name: str, is_of_ranks: bool, memory: Memory
) -> str:
    """Why it may be right that a step counts a loss so often; empty if it is wrong.

    Counts of ranks and of micro-batches have the same effect as a number that the loop chose. So an
    alarm needs a loss in which no such number is, and for one of ranks also a reduction that is
    seen as a mean: of a sum that a loop of its own clips, nobody knows the factor.
    """
    if name in ("k", "ranks*k") and not all(view.post.losses.has_batches for view in views):
        return "perhaps as its backwards are those of several losses, or parts, of one batch"
    weights = {view.post.losses.weight for view in views if not view.post.losses.goes_on}
    if weights != {1.0}:
        return "perhaps as a weight of the loop's own, such as 0.5 * loss"
    if is_of_ranks and losses.summed and not losses.total < 1:
        return "it is a sum over its rows"
    if is_of_ranks and not memory.losses.means:
        return "perhaps what reduces the gradients makes up for that"
    return ""


EARLY = 4
"""So many steps in a row, checked or not, make a fault: the last step of an epoch may have fewer
micro-batches. In the right loop ``reductions.short_fifth_group`` each fifth step does, and with
``--every 5`` a check sees no others."""


def _early(views: Sequence[View], losses: LossCount, memory: Memory) -> Iterator[Alarm]:
    """Steps have as many micro-batches as their losses are divided by. That may be another number
    than before, as in a curriculum.

    A plan may be that of all ranks, whose gradients are summed (the right loop
    ``reductions.accumulation_of_all_ranks``), and a number may be a weight of the loop's own
    (``losses.half_of_a_loss_and_a_plan``)."""
    has_own_weight = any(view.post.losses.weight != 1 for view in views)
    if (len(views) > 1 and memory.losses.means < MEANS) or has_own_weight:
        return
    plans = {view.post.losses.planned for view in views}
    plan = max(memory.losses.most_micro, plans.pop() if len(plans) == 1 else 0)
    is_early = losses.micro < plan and abs(losses.total * plan / losses.micro - 1) <= LOSS_NEAR
    if is_early and min(view.post.losses.equal_steps for view in views) >= EARLY:
        text = (
            f"each step comes after {losses.micro} of {number_of(plan, 'micro-batch', 'es')}, and "
            f"the losses are divided by {plan}"
        )
        yield Alarm("accumulation", "early", text, [view.rank for view in views], losses.total)


def _stages(views: Sequence[View]) -> Iterator[Alarm]:
    """A stage of a pipeline goes on with the gradient that the next stage computed."""
    ratios_by_rank = {}
    for view in views:
        ratios = view.post.tensors.get("passed")
        if ratios is None or not torch.isfinite(ratios).all():
            continue
        if bool(((ratios - 1).abs() > LOSS_NEAR).all()):
            ratios_by_rank[view.rank] = float(ratios.double().mean())
    if ratios_by_rank:
        ratio = min(ratios_by_rank.values())
        text = (
            f"stages go on with {ratio:.4g} times the gradient that the next stage computed: their "
            "layers train at another rate than later ones"
        )
        yield Alarm("accumulation", "stages", text, sorted(ratios_by_rank), ratio)


def _other_terms(views: Sequence[View], losses: LossCount, ranks: int) -> Iterator[Alarm]:
    """What makes up for a sum that is divided by the tokens of all ranks multiplies it alone."""
    is_by_tokens = losses.summed and abs(losses.total - 1) <= LOSS_NEAR
    factors = {view.post.losses.factor for view in views}
    if is_by_tokens and ranks > 1 and factors == {float(ranks)}:
        times = ranks * losses.micro
        text = (
            f"the step counts other terms of the loss {times} times: all of it is multiplied by "
            f"{ranks} ranks, which makes up for the tokens of all ranks and of {losses.micro} "
            "micro-batches by which one term alone is divided"
        )
        yield Alarm("accumulation", "terms", text, [view.rank for view in views], float(times))


UNEVEN = 2.0
"""How many times as much as another one a token counts that is told. In transformers 4.45.2 it
counts up to 2.3 times as much (``trainer_token_mean``)."""


def _uneven(views: Sequence[View], losses: LossCount, memory: Memory) -> Iterator[Alarm]:
    """Whoever trains with the Trainer does not choose how tokens of micro-batches are weighted."""
    if not memory.trainer or losses.summed or losses.weighted:
        return
    shares = []
    for view in views:
        counts, sizes = view.post.tensors.get("targets", torch.ones(2)).double().reshape(-1, 2).T
        has_ignored = bool((counts < sizes).any()) and bool((counts > 0).all())
        shares.append(float(counts.max() / counts.min()) if has_ignored else 1.0)
    memory.losses.uneven = memory.losses.uneven + 1 if max(shares) >= UNEVEN else 0
    if memory.losses.uneven == 2:
        text = (
            f"a token of one micro-batch counts {max(shares):.3g} times as much as one of another: "
            "micro-batches count alike, however many tokens have a label"
        )
        yield Alarm("accumulation", "uneven", text, [view.rank for view in views], max(shares))


FACTORS = {
    "k": (1, 0, "as often as there are micro-batches"),
    "1/k": (-1, 0, "divided by the number of micro-batches"),
    "ranks": (0, 1, "as often as there are ranks"),
    "1/ranks": (0, -1, "divided by the number of ranks"),
    "ranks*k": (1, 1, "as often as there are micro-batches on all ranks"),
    "1/(ranks*k)": (-1, -1, "divided by the number of micro-batches on all ranks"),
    "1/k**2": (-2, 0, "divided twice by the number of micro-batches"),
}
"""Wrong constants of a loss, as powers of the numbers of micro-batches and of ranks, and in words.
The names are those that ``probe`` writes."""

WHOLE = ("k", "1/k")
"""The constants that are told of a whole loss."""
