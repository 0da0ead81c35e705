"""The gradient that an optimizer uses is the mean of those that the ranks computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from . import together
from .views import Alarm, Memory, View, equal_at_first, named

NEAR = 5e-3
"""How far (as a fraction) a gradient may be from the right one: reductions add in another order."""
NEAR_IN_16_BITS = 5e-2
"""The same, if gradients are computed or reduced in 16 bits."""


@dataclass
class Pair:
    """The gradient of a parameter that an optimizer uses, beside the mean of the computed ones."""

    name: str
    used: Tensor
    mean: Tensor
    largest: float
    """The norm of the largest gradient of a rank, at the same positions."""
    coarse: bool

    @property
    def ratio(self) -> float:
        square = float(self.mean @ self.mean)
        return float(self.used @ self.mean) / square if square else 0.0

    def error(self, ratio: float) -> float:
        return float((self.used - ratio * self.mean).norm())

    def relative_error(self, ratio: float) -> float:
        size = max(float(self.used.norm()), abs(ratio) * self.largest)
        return self.error(ratio) / (size or 1.0)


def gradients(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """The gradient that an optimizer uses is the mean of those that the ranks computed."""
    lossy = next((view.post.lossy for view in views if view.post.lossy), "")
    if lossy:
        memory.not_seen["gradients"] = f"gradients are not compared: {lossy} is no mean on purpose"
        return
    for view in views:
        if names := view.post.without_gradient:
            text = f"the optimizer has no gradient of {named(names)}, but this rank computed one"
            yield Alarm("gradients", "none", text, [view.rank], float(len(names)), names)
    if len(views) >= together.MANY and not any(view.post.without_gradient for view in views):
        right = together.right_gradients(views, NEAR)
        if right is not None:
            _note_compared(right, views, memory)
            return
    for view, pairs in _pairs(views, memory):
        alarm = _judged_gradient(view, pairs)
        if alarm is not None:
            yield alarm


def _judged_gradient(view: View, pairs: Sequence[Pair]) -> Alarm | None:
    used = torch.cat([pair.used for pair in pairs])
    mean = torch.cat([pair.mean for pair in pairs])
    if not torch.isfinite(used).all() or not mean.any():
        return None
    near = NEAR_IN_16_BITS if any(pair.coarse for pair in pairs) else NEAR
    largest = math.sqrt(sum(pair.largest**2 for pair in pairs))
    ratio = float(used @ mean / (mean @ mean))
    error = float((used - ratio * mean).norm())
    if not used.any() or error > near * max(float(used.norm()), abs(ratio) * largest):
        usual = _usual_ratio(pairs)
        names = [pair.name for pair in pairs if pair.relative_error(usual) > 5 * near]
        worst = max(pairs, key=lambda pair: pair.error(usual)).name
        size = float((used - usual * mean).norm()) / (float(mean.norm()) or 1.0)
        how = f"it is off by {size:.0%} of it" if used.any() else "it is zero"
        text = (
            "the optimizer does not use the mean of the gradients that the ranks computed: "
            f"{how}, in {len(names) or 1} of {len(pairs)} parameters, most in {worst}"
        )
        parameters = [worst, *(name for name in names if name != worst)]
        return Alarm("gradients", "mean", text, [view.rank], size, parameters)
    if ratio > 1 + near:
        text = (
            f"the gradient that the optimizer uses is {ratio:.4g} times the mean of those that "
            "the ranks computed"
        )
        return Alarm("gradients", "longer", text, [view.rank], ratio)
    return None


def _usual_ratio(pairs: Sequence[Pair]) -> float:
    """The ratio of half of all the computed gradients: a few wrong parameters do not move it."""
    ratios = sorted((pair.ratio, float(pair.mean @ pair.mean)) for pair in pairs)
    sums = list(accumulate(weight for _, weight in ratios))
    return next(ratio for (ratio, _), total in zip(ratios, sums) if 2 * total >= sums[-1])


def _pairs(views: Sequence[View], memory: Memory) -> Iterator[tuple[View, list[Pair]]]:
    """For each rank, the gradients that can be compared."""
    alike = equal_at_first(views)
    groups: dict[Any, list[tuple[View, int]]] = {}
    for view in views:
        for number in view.numbers:
            described = view.described[number]
            if described.optimized or described.begin or described.end < described.numel:
                who = str(described.ranks) if described.ranks else alike[view.rank] or view.rank
                key = described.name, described.part, who
                groups.setdefault(key, []).append((view, number))
    pairs: dict[int, list[Pair]] = {view.rank: [] for view in views}
    places = {view.rank: view.post.positions() for view in views}
    compared, names = set(), set()
    for (name, *_), members in groups.items():
        names.add(name)
        expected = members[0][0].described[members[0][1]].ranks
        computed = [view.computed(number) for view, number in members]
        present = [gradient for gradient in computed if gradient is not None]
        complete = not expected or len(members) == len(expected)
        if not present or not complete or len({len(gradient) for gradient in present}) > 1:
            continue
        mean = torch.stack(present).sum(0) / len(members)
        if not torch.isfinite(mean).all():
            continue
        largest = max(float(gradient.norm()) for gradient in present)
        for view, number in members:
            place = places[view.rank].get(number)
            if place is None:
                continue
            compared.add(name)
            first = next(first for at, first, _ in view.post.used if at == number)
            start, count = place
            used = view.post.tensors["used"][start : start + count].double()
            part = mean[first : first + count]
            share = math.sqrt(count / len(mean))
            pair = Pair(name, used, part, largest * share, view.is_coarse(number))
            pairs[view.rank].append(pair)
    _note_compared({name: name in compared for name in names}, views, memory)
    for view in views:
        if pairs[view.rank]:
            yield view, pairs[view.rank]


def _note_compared(compared: dict[str, bool], views: Sequence[View], memory: Memory) -> None:
    """Note of each parameter that this check looks at whether its gradients were compared."""
    memory.compared["gradients"] = sum(compared.values())
    memory.compared_gradients.update(compared)
    left = {name for name, is_compared in memory.compared_gradients.items() if not is_compared}
    if not left:
        memory.not_seen.pop("gradients", None)
        return
    layouts = {together.layout(view).columns.digest: view.described for view in views}
    reasons = {d.left_out for described in layouts.values() for d in described if d.name in left}
    why = ", ".join(sorted(reason for reason in reasons if reason)) or "no gradient was seen"
    memory.not_seen["gradients"] = (
        f"gradients of {len(left)} of {len(memory.compared_gradients)} parameters are not "
        f"compared: {why}"
    )
