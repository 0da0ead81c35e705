"""The gradient that an optimizer uses is the mean of those that the ranks computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..posting.posts import Alarm
from . import together
from .accumulation import LOSS_NEAR, LossCount, loss_count
from .views import Memory, View, groups_of, named

NEAR = 5e-3
"""How far (as a fraction) a gradient may be from the right one: reductions add in another order.
One of 22 gradients that was 1.5 times too long was 3 % of all; 70 right trainings with 588 checks
stayed below this bound."""
NEAR_IN_16_BITS = 5e-2
"""The same, if gradients are computed or reduced in 16 bits: bf16 rounds each of a dozen additions
by up to 0.4 %. ``boundary_micro_batch`` does not average one of four micro-batches in bf16."""


@dataclass
class Pair:
    """The gradient of a parameter that an optimizer uses, beside the mean of the computed ones."""

    name: str
    used: Tensor
    mean: Tensor
    largest: float
    """The norm of the largest gradient of a rank, at the same positions."""
    coarse: bool
    parts: Tensor
    """The gradient of each rank, in rows."""
    common: bool
    """Whether all ranks use the same gradient, as far as they have the same part of it."""
    left: Tensor | None
    """The gradient that was there when the step began; None without one."""
    tied: list[Tensor] = field(default_factory=list)
    """The means of weights of other stages that were equal to this one at first: if these share a
    weight, as first and last embedding do, each uses the sum."""

    @property
    def ratio(self) -> float:
        square = float(self.mean @ self.mean)
        return float(self.used @ self.mean) / square if square else 0.0

    def error(self, ratio: float) -> float:
        return float((self.used - ratio * self.mean).norm())

    def nearest(self, ratio: float) -> Pair:
        """The pair with the sum of the tied means, if that is nearer to what is used."""
        others = [replace(self, mean=self.mean + mean) for mean in self.tied]
        return min([self, *others], key=lambda pair: pair.error(ratio))

    def relative_error(self, ratio: float) -> float:
        size = max(float(self.used.norm()), abs(ratio) * self.largest)
        return self.error(ratio) / (size or 1.0)


def gradients(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """The gradient that an optimizer uses is the mean of those that the ranks computed."""
    memory.apart.unreduced = memory.apart.unclear = False
    lossy = next((view.post.gradients.lossy for view in views if view.post.gradients.lossy), "")
    memory.gradients.has_factor = not lossy
    if lossy:
        memory.not_seen["gradients"] = f"gradients are not compared: {lossy} is no mean on purpose"
        return
    for view in views:
        if names := view.post.gradients.without_gradient:
            text = f"the optimizer has no gradient of {named(names)}, but this rank computed one"
            yield Alarm("gradients", "none", text, [view.rank], float(len(names)), names)
    memory.gradients.factor, losses = 1.0, cache(partial(loss_count, views))
    if not any(view.post.gradients.without_gradient for view in views):
        right_ones = together.right_gradients(views, NEAR)
        if right_ones is not None:
            _note_compared(right_ones, views, memory)
            return
    unlike = _averaged_of_unlike_weights(views)
    if unlike:
        text = (
            f"the ranks use the mean of their gradients of {named(unlike)}, and have other values "
            "of these weights since the first step: nobody has sent those of one rank to the others"
        )
        yield Alarm("replicas", "beginning", text, [view.rank for view in views], 0.0, unlike)
        return
    for view, pairs in _pairs(views, memory):
        alarm = _judged_gradient(view, pairs, memory)
        is_sum = alarm is not None and alarm.kind == "longer"
        if alarm is None or (is_sum and _may_be_right(alarm.size, losses, memory, len(views))):
            continue
        yield alarm


def _may_be_right(
    factor: float, losses: Callable[[], LossCount | None], memory: Memory, ranks: int
) -> bool:
    """Whether a sum over ranks may be right: it is wrong only if the loss of each rank is a mean.
    A sum over rows, or a mean that is divided by the ranks, is to be summed."""
    count = losses()
    if count is not None and abs(count.total - 1) <= LOSS_NEAR:
        return False
    if count is not None and (count.summed or abs(factor * count.total - 1) <= LOSS_NEAR):
        return True
    is_sum = 1 < round(factor) <= ranks and abs(factor / round(factor) - 1) <= NEAR
    if is_sum:
        memory.not_seen["scale"] = (
            "gradients are summed over the ranks: whether the loss is divided by them is not seen"
        )
    return is_sum


def _judged_gradient(view: View, pairs: Sequence[Pair], memory: Memory) -> Alarm | None:
    if any(pair.tied for pair in pairs):
        usual = _usual_ratio(pairs)
        pairs = [pair.nearest(usual) for pair in pairs]
    gradient = torch.cat([pair.used for pair in pairs])
    mean = torch.cat([pair.mean for pair in pairs])
    if not torch.isfinite(gradient).all() or not mean.any():
        return None
    near = NEAR_IN_16_BITS if any(pair.coarse for pair in pairs) else NEAR
    if (view.post.gradients.stale or memory.gradients.stale) and any(
        pair.left is not None for pair in pairs
    ):
        alarm = _stale(view, pairs, near)
        if alarm is not None:
            memory.gradients.has_factor, memory.gradients.stale = False, True
            return alarm
    largest = math.sqrt(sum(pair.largest**2 for pair in pairs))
    ratio = float(gradient @ mean / (mean @ mean))
    error = float((gradient - ratio * mean).norm())
    is_common = all(pair.common for pair in pairs)
    if view.post.gradients.edited and is_common and not gradient.any():
        return None  # the loop freezes them so
    if not gradient.any() or error > near * max(float(gradient.norm()), abs(ratio) * largest):
        memory.gradients.has_factor = False
        if (
            view.post.gradients.edited
            and not memory.gradients.dropped
            and _is_edit(pairs, near, memory)
        ):
            return None
        usual = _usual_ratio(pairs)
        names = [pair.name for pair in pairs if pair.relative_error(usual) > 5 * near]
        worst = max(pairs, key=lambda pair: pair.error(usual)).name
        factor = min(1.0, usual) if usual > 0 else 1.0  # of a clipping, or of a loss scale
        size = float((gradient - usual * mean).norm()) / (factor * float(mean.norm()) or 1.0)
        how = f"it is off by {size:.0%} of it" if gradient.any() else "it is zero"
        if _is_of_one_rank(pairs, near):
            how = f"it uses that of one rank alone, which is off by {size:.0%} of it"
        text = (
            "the optimizer does not use the mean of the gradients that the ranks computed: "
            f"{how}, in {len(names) or 1} of {len(pairs)} parameters, most in {worst}"
        )
        parameters = [worst, *(name for name in names if name != worst)]
        return Alarm("gradients", "mean", text, [view.rank], size, parameters)
    memory.gradients.factor = ratio
    is_sum = abs(ratio - len(pairs[0].parts)) <= near * ratio
    if view.post.gradients.edited and is_common and not is_sum:
        return None  # a loop that makes all gradients equally long
    if ratio > 1 + near:
        text = (
            f"the gradient that the optimizer uses is {ratio:.4g} times the mean of those that "
            "the ranks computed"
        )
        factors = ["ranks"] if is_sum else []
        return Alarm("gradients", "longer", text, [view.rank], ratio, factors=factors)
    return None


def _stale(view: View, pairs: Sequence[Pair], near: float) -> Alarm | None:
    """The alarm if a step adds its gradient to the one that the step before has left."""
    gradient = torch.cat([pair.used for pair in pairs])
    mean = torch.cat([pair.mean for pair in pairs])
    left = torch.cat([torch.zeros_like(p.used) if p.left is None else p.left for p in pairs])
    size = float(gradient.norm())
    if (
        float((gradient - mean - left).norm()) > near * size
        or float(left.norm()) <= 5 * near * size
    ):
        return None
    names = [pair.name for pair in pairs if pair.left is not None and pair.left.any()]
    text = (
        "the optimizer uses the gradient of the step before a second time, as nobody has cleared "
        f"it (zero_grad): in {len(names)} of {len(pairs)} parameters"
    )
    share = float(left.norm()) / (float(mean.norm()) or 1.0)
    return Alarm("gradients", "stale", text, [view.rank], share, names)


def _is_of_one_rank(pairs: Sequence[Pair], near: float) -> bool:
    """Whether the gradients that are used are those that one of the ranks computed."""
    used = torch.cat([pair.used for pair in pairs])
    ranks = min(len(pair.parts) for pair in pairs)
    apart = torch.cat([pair.parts[:ranks] for pair in pairs], 1) - used
    return bool(used.any() and (apart.norm(dim=1) <= near * used.norm()).any())


def _is_edit(pairs: Sequence[Pair], near: float, memory: Memory) -> bool:
    """Whether a loop may have changed the gradients on purpose after it had their mean: by noise,
    decay, clipping, or a rate for each layer. All ranks use the same then. It is no such change if
    that of some ranks has no part in it."""
    if not all(pair.common for pair in pairs):
        return False
    weights = _weights_of_ranks(pairs, near)
    if weights is None:
        memory.not_seen["edits"] = (
            "the loop changes gradients after it has their mean: whether rightly is not compared"
        )
        return True
    return min(weights) > near


def _weights_of_ranks(pairs: Sequence[Pair], near: float) -> list[float] | None:
    """How often the gradient of each rank is in the one that they use; None if it is another one.
    Ranks with more rows may weigh more."""
    ranks = len(pairs[0].parts)
    if any(len(pair.parts) != ranks for pair in pairs):
        return None
    gradient = torch.cat([pair.used for pair in pairs])
    parts = torch.cat([pair.parts for pair in pairs], 1).T
    if len(gradient) < 4 * ranks:
        return None
    weights = torch.linalg.lstsq(parts, gradient[:, None]).solution[:, 0]
    error = float((parts @ weights - gradient).norm())
    return [float(weight) for weight in weights] if error <= near * float(gradient.norm()) else None


def _usual_ratio(pairs: Sequence[Pair]) -> float:
    """The ratio of half of all the computed gradients: a few wrong parameters do not move it."""
    ratios = sorted((pair.ratio, float(pair.mean @ pair.mean)) for pair in pairs)
    sums = list(accumulate(weight for _, weight in ratios))
    return next(ratio for (ratio, _), total in zip(ratios, sums) if 2 * total >= sums[-1])


def _averaged_of_unlike_weights(views: Sequence[View]) -> list[str]:
    """The parameters that had other values on each rank at first, and have other ones now, of whose
    gradients each rank nevertheless uses the mean of all, or their sum."""
    firsts = [view.first_bits for view in views if view.first_bits is not None]
    is_one_model = len({view.described.columns.digest for view in views}) == 1
    names = []
    for number in views[0].numbers if is_one_model and len(firsts) == len(views) > 1 else ():
        described = views[0].described[number]
        values = zip(firsts, views)
        pairs = [(int(first[number]), view.bits(number)) for first, view in values]
        is_apart = all(len({*column}) > 1 for column in zip(*pairs))
        gradients = [view.computed(number) for view in views]
        computed = [one for one in gradients if one is not None]
        if described.ranks or described.left_out or not is_apart or len(computed) < len(views):
            continue
        mean = torch.stack(computed).mean(0)
        used_by_ranks = [used for *_, used in _used([(view, number) for view in views])]
        is_mean = [
            len(used) == len(mean)
            and any(
                float((used - times * mean).norm()) <= NEAR * float(used.norm())
                for times in (1, len(views))
            )
            for used in used_by_ranks
        ]
        if len(is_mean) == len(views) and all(is_mean) and not _are_alike(computed[0], mean):
            names.append(described.name)
    return names


def _pairs(views: Sequence[View], memory: Memory) -> Iterator[tuple[View, list[Pair]]]:
    """For each rank, the gradients that can be compared.

    If ranks have other gradients, and copies of the weight are equal after the step, bit by bit,
    then the step has moved nothing, or it reduces gradients itself: what they were before says
    nothing.
    """
    group_of = groups_of(views)
    groups: dict[Any, list[tuple[View, int]]] = {}
    for view in views:
        for number in view.numbers:
            described = view.described[number]
            if described.optimized or described.begin or described.end < described.numel:
                key = described.name, group_of(view, described)
                groups.setdefault(key, []).append((view, number))
    pairs: dict[int, list[Pair]] = {view.rank: [] for view in views}
    alone: list[bool | None] = []
    ties: dict[Any, list[Pair]] = {}
    compared, names, in_step = set(), set(), set()
    for (name, *_), members in groups.items():
        names.add(name)
        expected = members[0][0].described[members[0][1]].ranks
        computed = [view.computed(number) for view, number in members]
        present = [gradient for gradient in computed if gradient is not None]
        complete = not expected or len(members) == len(expected)
        parts = max(view.post.gradients.partial.get(str(number), 1) for view, number in members)
        if not present or not complete or len({len(gradient) for gradient in present}) > 1:
            continue
        if len(members) % parts:
            continue
        rows = torch.stack(present)
        mean = rows.sum(0) * parts / len(members)
        if not torch.isfinite(mean).all():
            return  # a loss scaler skips such a step, and its gradients are in none
        largest = float(rows.norm(dim=1).max())
        is_left_alone = not expected or all(view.post.loop.unreduced for view, _ in members)
        used_by_ranks = list(_used(members))
        firsts: dict[tuple[int, int], Tensor] = {}
        common = all(
            torch.allclose(used, firsts.setdefault((at, len(used)), used), rtol=1e-5, atol=0)
            for _, _, at, used in used_by_ranks
        )
        has_equal_weights = len({view.bits(number) for view, number in members}) == 1
        if is_left_alone and not common and has_equal_weights:
            in_step.add(name)
            alone.append(None)  # or Adam's first step moves a weight as far on all ranks
            continue
        if len(present) > 1 and is_left_alone:
            alone.append(_is_alone(members))
        for view, number, position, used in used_by_ranks:
            compared.add(name)
            part = slice(position, position + len(used))
            size, coarse = largest * math.sqrt(len(used) / len(mean)), view.is_coarse(number)
            left = _left(view, number)
            pair = Pair(name, used, mean[part], size, coarse, rows[:, part], common, left)
            pairs[view.rank].append(pair)
            if place := _place_of_tie(view, number):
                ties.setdefault(place, []).append(pair)
    for tied in ties.values():
        means = {pair.name: pair.mean for pair in tied}
        for pair in tied:
            pair.tied = [mean for name, mean in means.items() if name != pair.name]
    memory.apart.unreduced = True in alone and False not in alone
    memory.apart.unclear = bool(alone) and {*alone} == {None}
    memory.gradients.has_factor = memory.gradients.has_factor and not in_step
    _note_compared({name: name in compared for name in names}, views, memory, in_step)
    for view in views:
        if pairs[view.rank]:
            yield view, pairs[view.rank]


def _used(members: Sequence[tuple[View, int]]) -> Iterator[tuple[View, int, int, Tensor]]:
    """The gradients of a parameter that the optimizers of some ranks use, and the first of their
    positions. Where tensor parallelism adds them later, each rank has the sum."""
    gradients = []
    for view, number in members:
        place = view.used_places.get(number)
        if place is not None:
            start, position, count = place
            values = view.post.tensors["used"][start : start + count].double()
            gradients.append((view, number, position, values))
    parts = max(
        [view.post.gradients.partial_used.get(str(n), 1) for view, n, *_ in gradients], default=1
    )
    if parts == 1:
        yield from gradients
    elif len(gradients) == len(members) and not len(members) % parts:
        mean = torch.stack([values for *_, values in gradients]).sum(0) * parts / len(members)
        yield from ((view, number, position, mean) for view, number, position, _ in gradients)


def _left(view: View, number: int) -> Tensor | None:
    """What was in the used gradient of a parameter when the step began."""
    gradients = view.post.tensors.get("left")
    if gradients is None or view.post.gradients.partial_used:
        return None
    start, _, count = view.used_places[number]
    return gradients[start : start + count].double()


def _place_of_tie(view: View, number: int) -> Any:
    """What weights of two stages of a pipeline have in common if they are one weight; None if the
    parameter is in no stage."""
    described = view.described[number]
    if view.first_bits is None or not described.part.startswith("stage"):
        return None
    bits = int(view.first_bits[number])
    return bits, described.numel, described.begin, described.end


def _is_alone(members: Sequence[tuple[View, int]]) -> bool | None:
    """Whether each rank uses a multiple of the gradient that it computed; None if that says
    nothing, as those of all ranks have one direction: of a single value, or a bias of two classes.
    """
    gradients = [view.computed(number) for view, number in members]
    gradients_by_rank = {view.rank: values for view, _, _, values in _used(members)}
    for computed, (view, _) in zip(gradients, members):
        gradient = gradients_by_rank.get(view.rank)
        if (
            computed is None
            or gradient is None
            or len(computed) != len(gradient)
            or not _are_alike(computed, gradient)
        ):
            return False
    return None if all(_are_alike(computed, gradients[0]) for computed in gradients) else True


def _are_alike(gradient: Tensor | None, second: Tensor | None) -> bool:
    """Whether a gradient is a multiple of another one."""
    if gradient is None or second is None:
        return False
    square = float(gradient @ gradient)
    remainder = second - (float(gradient @ second) / square if square else 0.0) * gradient
    return float(remainder.norm()) <= NEAR * float(second.norm()) + 1e-30


def _note_compared(
    compared: dict[str, bool], views: Sequence[View], memory: Memory, in_step: Collection[str] = ()
) -> None:
    """Note of each parameter that this check looks at whether its gradients were compared. The
    step itself may reduce those of the parameters ``in_step``."""
    memory.compared["gradients"] = sum(compared.values())
    memory.gradients.compared.update(compared)
    without_comparison = {
        name for name, is_compared in memory.gradients.compared.items() if not is_compared
    }
    if not without_comparison:
        memory.not_seen.pop("gradients", None)
        return
    tables = {view.described.columns.digest: view.described for view in views}
    reasons = {
        d.left_out
        for described in tables.values()
        for d in described
        if d.name in without_comparison
    }
    reasons |= {"the optimizer's step may reduce them itself"} if in_step else set()
    why = ", ".join(sorted(reason for reason in reasons if reason)) or "no gradient was seen"
    memory.not_seen["gradients"] = (
        f"gradients of {len(without_comparison)} of {len(memory.gradients.compared)} parameters "
        f"are not compared: {why}"
    )
