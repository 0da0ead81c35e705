"""A step moves the weights as the formula of its optimizer says, alike on all ranks.

The weights of the model are those that it moves, rounded, and it has all that gets gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....detectors.arithmetic import NOISE
from ..posting.posts import Alarm
from .stacked_updates import Updates, alike, stacked
from .views import Memory, View, named

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The rounding of a weight, as a fraction."""
ROUNDINGS = 4
"""So many roundings of the largest weight a step may be off, ..."""
NEAR = 2e-2
"""... or such a part of the longest movement."""


def updates(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step moves the weights as the formula of its optimizer says."""
    memory.compared["updates"] = 0
    for ranks in alike(views):
        comparisons = [one for one in map(_compared, stacked(ranks)) if one is not None]
        for row, view in enumerate(ranks):
            if view.post.loop.fused_scale:
                why = "updates are not compared: the optimizer divides itself"
                memory.not_seen["updates"] = why
                continue
            wrong = any(one.has_wrong[row] for one in comparisons)
            if wrong and view.post.loop.hooked:
                memory.not_seen["updates"] = "updates are not compared: the optimizer has hooks"
                continue
            memory.compared["updates"] += sum(int(one.count[row]) for one in comparisons)
            counts = {n for one in comparisons for n in one.counted[row].tolist()}
            # One step was counted, with no gradient: a loop may keep the count of a load.
            if view.post.check == 1 and {n for n in counts if not math.isnan(n)} == {1.0}:
                text = (
                    f"{view.post.parameters.kind} counts a step before its first gradient, so that "
                    "its first steps are too short"
                )
                yield Alarm("updates", "counted", text, [view.rank], 1.0)
            if wrong:
                yield from _wrong(comparisons, row, view)


@dataclass
class Comparison:
    """How far parameters moved, beside the formula of their optimizer: by rank and update."""

    updates: Updates
    error: Tensor
    ratio: Tensor
    """How many times as far as the formula says."""
    has_moved: Tensor
    is_wrong: Tensor
    has_wrong: list[bool]
    """By rank, whether an update is wrong."""
    count: list[int]
    """By rank, how many updates were compared."""
    counted: Tensor
    """Steps that the optimizer has counted, if its moments are still zero; nan without moments or
    without a gradient."""


def _compared(updates: Updates) -> Comparison | None:
    """None of an optimizer without a known formula, which may leave some weights as they are, and
    without a learning rate."""
    epsilon, expected = EPSILON.get(updates.dtype), updates.expected
    if epsilon is None or expected is None or not updates.rate:
        return None
    is_compared = torch.isfinite(updates.gradient).all(-1)
    error = (updates.moved - expected).abs().amax(-1)
    rounding = ROUNDINGS * epsilon * updates.weight.abs().amax(-1) + 1e-12
    limit = torch.maximum(rounding, NEAR * expected.abs().amax(-1))
    is_wrong = is_compared & (error > limit)
    square = (expected**2).sum(-1)
    ratio = torch.where(square > 0, (updates.moved * expected).sum(-1) / square, math.inf)
    counted = torch.full_like(error, math.nan)
    if "exp_avg" in updates.state:
        has_gradient = updates.gradient.any(-1) & is_compared
        is_new = ~torch.stack([moment.any(-1) for moment in updates.state.values()]).any(0)
        counted[has_gradient] = torch.where(is_new, updates.step, 0.0)[has_gradient].to(error)
    has_wrong, count = is_wrong.any(-1).tolist(), is_compared.sum(-1).tolist()
    has_moved = updates.moved.any(-1)
    return Comparison(updates, error, ratio, has_moved, is_wrong, has_wrong, count, counted)


def _wrong(comparisons: Sequence[Comparison], row: int, view: View) -> Iterator[Alarm]:
    """The alarm of a rank with wrong updates, unless nothing moved at all: the step was skipped."""
    places = [
        (one.updates.places[at], one, at)
        for one in comparisons
        for at in one.is_wrong[row].nonzero().flatten().tolist()
    ]
    wrong = [(one, at) for _, one, at in sorted(places, key=lambda place: place[0])]
    total = sum(one.count[row] for one in comparisons)
    if len(wrong) == total and not any(bool(one.has_moved[row, at]) for one, at in wrong):
        return
    names = [view.described[one.updates.numbers[at]].name for one, at in wrong]
    errors = [float(one.error[row, at]) for one, at in wrong]
    worst = errors.index(max(errors))
    one, at = wrong[worst]
    others = f" (and {len(wrong) - 1} more of {total} parameters)"
    if not bool(one.has_moved[row, at]):
        text = f"{names[worst]} was not moved, although it has a gradient{others}"
    else:
        text = (
            f"{names[worst]} moved {float(one.ratio[row, at]):.3g} times as far as the formula of "
            f"{view.post.parameters.kind} says{others}"
        )
    yield Alarm("updates", "formula", text, [view.rank], errors[worst], names)


SAME = ("lr", "weight_decay", "momentum", "betas", "eps", "d")
"""Settings of a group that say how far a step goes; ``d`` is the step size that Prodigy and
D-Adaptation choose. Others may be of one rank, such as a seed."""


def groups(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Ranks step a parameter with the same settings: where each has a shard, no copies would show
    that they do not."""
    firsts: dict[Any, tuple[Any, int]] = {}
    forms = set()
    for view in views:
        if view.post.run.form in forms:
            continue  # the same settings as those of a rank before
        forms.update([view.post.run.form] if view.post.run.form else [])
        for update in view.post.parameters.updates:
            described = view.described[update.parameter]
            rate = {"lr": update.rate} if update.rate >= 0 else {}
            values = {name: update.group[name] for name in SAME if name in update.group}
            for name, value in {**values, **rate}.items() if described.ranks else ():
                place = described.name, described.part, tuple(described.ranks), name
                first, rank = firsts.setdefault(place, (value, view.rank))
                if not _are_equal(value, first):
                    text = (
                        f"ranks step {described.name} with other settings: {name} is {first} on "
                        f"rank {rank}, and {value} on rank {view.rank}"
                    )
                    yield Alarm("updates", "settings", text, [view.rank], 0.0, [described.name])
                    return


def _are_equal(value: Any, second: Any) -> bool:
    """Whether two numbers, or lists of numbers, are equal, as far as rounding allows."""
    values, others = (one if isinstance(one, (list, tuple)) else [one] for one in (value, second))
    return len(values) == len(others) and all(
        one == other or abs(one - other) <= NOISE * abs(other) for one, other in zip(values, others)
    )


def masters(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """The weights of the model are those that the optimizer steps, rounded."""
    for view in views:
        counts = view.post.tensors.get("unrounded")
        if counts is None:
            continue
        memory.compared["masters"] = sum(bool(view.described[n].master) for n in view.numbers)
        apart = {
            view.described[number].name: int(count)
            for number, count in zip(view.numbers, counts)
            if int(count)
        }
        if apart:
            total, names = sum(apart.values()), list(apart)
            kind = view.described[view.numbers[0]].master
            text = (
                f"{total} value{'s' if total > 1 else ''} of {named(names)} are not those of the "
                f"copy in {kind} that the optimizer steps, rounded"
            )
            yield Alarm("updates", "copy", text, [view.rank], float(total), names)


def unheld(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """What gets gradients is in an optimizer: not so if that holds tensors of no module."""
    for view in views:
        post = view.post
        is_late = post.check >= 3 and "bits" in post.tensors
        if view.first_bits is None or not is_late or not post.gradients.unheld:
            continue
        still = [
            described.name
            for number in view.numbers
            for described in [view.described[number]]
            if not described.optimized
            and described.trained
            and int(view.first_bits[number]) == view.bits(number)
            # An earlier model may have kept its gradients.
            and (post.gradients.foreign or str(number) in post.gradients.computed)
        ]
        if still and not post.gradients.foreign:  # a loop may freeze them so
            verb = "gets" if len(still) == 1 else "get"
            memory.not_seen["unheld"] = (
                f"whether it is meant that {named(still)} {verb} gradients and no optimizer has "
                f"{'it' if len(still) == 1 else 'them'}"
            )
        elif still:
            s = "s" if len(still) == 1 else ""
            text = (
                f"{named(still)} get{s} gradients but never move{s}: the optimizer holds "
                f"{post.gradients.foreign} tensors that belong to no module and have no gradient"
            )
            yield Alarm("updates", "unheld", text, [view.rank], float(len(still)), still)
