"""What is wrong in a step, by the posts of all its ranks. Nothing here asks a device or a rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .posts import Described, Post, Update
from .samples import Positions

NEAR = 5e-3
"""How far (as a fraction) a gradient may be from the right one: reductions add in another order."""
NEAR_IN_16_BITS = 5e-2
"""The same, if gradients are computed or reduced in 16 bits."""
LOSS_NEAR = 1e-2
"""How far a loss's weight may be from 1: a weight in bf16 is off by 0.4 %."""
PATIENCE = 4
"""Checks in a row with cleared gradients that make a fault: a loop may skip a step now and then."""
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass
class Alarm:
    """A fault of one step."""

    check: str
    kind: str
    text: str
    ranks: list[int]
    size: float = 0.0
    parameters: list[str] = field(default_factory=list)


@dataclass
class Memory:
    """What the judge keeps of earlier posts."""

    described: dict[int, list[Described]] = field(default_factory=dict)
    """By rank."""
    first_bits: dict[int, Tensor] = field(default_factory=dict)
    """By rank, the bit sums of the weights when training began."""
    dropped: int = 0
    """The checks in a row in which gradients were cleared before a step used them."""
    compared: dict[str, int] = field(default_factory=dict)
    """By check, how many parameters the last one compared."""
    not_seen: dict[str, str] = field(default_factory=dict)
    """By check, what it does not see, in a sentence."""


@dataclass
class View:
    """A post with what the judge remembers of its rank."""

    post: Post
    described: list[Described]
    first_bits: Tensor | None

    @property
    def rank(self) -> int:
        return self.post.rank

    def computed(self, number: int, counts: Sequence[int]) -> Tensor | None:
        """The sum of the gradients that the rank computed for a parameter, at its positions."""
        if str(number) not in self.post.computed or "computed" not in self.post.tensors:
            return None
        start = sum(counts[:number])
        return self.post.tensors["computed"][start : start + counts[number]].double()

    def is_coarse(self, number: int) -> bool:
        return self.post.coarse or self.post.computed.get(str(number)) in ("bfloat16", "float16")


def judge(posts: Sequence[Post], memory: Memory) -> list[Alarm]:
    """The faults of a step, each once: the same fault on several ranks is one."""
    views = [_remembered(post, memory) for post in posts]
    was_dropped = any(post.dropped for post in posts)
    memory.dropped = memory.dropped + 1 if was_dropped else 0
    alarms = [
        Alarm(local.check, local.kind, local.text, [post.rank], local.size)
        for post in posts
        for local in post.alarms
    ]
    for name, check in CHECKS.items():
        if name in ("gradients", "accumulation") and 0 < memory.dropped < PATIENCE:
            continue
        alarms += check(views, memory)
    return _merged(alarms)


def _remembered(post: Post, memory: Memory) -> View:
    if post.described:
        memory.described[post.rank] = post.described
        memory.first_bits.pop(post.rank, None)
    if "first_bits" in post.tensors:
        memory.first_bits[post.rank] = post.tensors["first_bits"]
    first = memory.first_bits.get(post.rank)
    if first is not None and len(first) != len(post.tensors.get("bits", ())):
        first = None
    return View(post, memory.described.get(post.rank, []), first)


def _merged(alarms: Sequence[Alarm]) -> list[Alarm]:
    merged: dict[tuple[str, str], Alarm] = {}
    for alarm in alarms:
        other = merged.setdefault((alarm.check, alarm.kind), alarm)
        other.ranks = sorted({*other.ranks, *alarm.ranks})
        other.size = max(other.size, alarm.size)
    return list(merged.values())


def _named(names: Sequence[str]) -> str:
    """``a``, or ``a and 3 more parameters``."""
    more = len(names) - 1
    return f"{names[0]} and {more} more parameter{'s' if more > 1 else ''}" if more else names[0]


# -- replicas --


def _equal_at_first(views: Sequence[View]) -> dict[int, tuple[Any, ...]]:
    """By rank, what it had at first of the parameters that other ranks have and no wrapper groups.

    Only ranks that agree in all of it are replicas. One parameter says nothing: a bias of zeros is
    equal on all ranks, also where the weight beside it is split.
    """
    firsts: dict[str, list[tuple[int, int]]] = {}
    for view in views:
        if view.first_bits is not None:
            for number, described in enumerate(view.described):
                if not described.ranks:
                    bits = int(view.first_bits[number])
                    firsts.setdefault(described.copy, []).append((view.rank, bits))
    shared: dict[int, list[tuple[str, int]]] = {view.rank: [] for view in views}
    for copy, members in sorted(firsts.items()):
        for rank, bits in members if len(members) > 1 else ():
            shared[rank].append((copy, bits))
    return {rank: tuple(items) for rank, items in shared.items()}


def _copies(views: Sequence[View]) -> Iterator[list[tuple[View, int]]]:
    """The groups of ranks, each with the number of a parameter, that have copies of one weight."""
    alike = _equal_at_first(views)
    groups: dict[Any, list[tuple[View, int]]] = {}
    for view in views:
        if view.first_bits is None:
            continue
        for number, described in enumerate(view.described):
            who = str(described.ranks) if described.ranks else alike[view.rank]
            key = described.copy, who, int(view.first_bits[number])
            groups.setdefault(key, []).append((view, number))
    for members in groups.values():
        if len(members) > 1:
            yield members


def replicas(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Copies of a weight that were equal when training began are equal, bit by bit."""
    names, ranks, sizes, compared = [], set(), [0.0], 0
    for members in _copies(views):
        compared += 1
        bits = [int(view.post.tensors["bits"][number]) for view, number in members]
        usual = max(dict.fromkeys(bits), key=bits.count)
        model = members[bits.index(usual)]
        for (view, number), value in zip(members, bits):
            if value != usual:
                name = view.described[number].name
                names += [] if name in names else [name]
                ranks.add(view.rank)
                sizes.append(_distance(view, number, *model))
    memory.compared["replicas"] = compared
    if names:
        size = max(sizes)
        where = f"by up to {size:.2g} in the sample" if size else "in values outside the sample"
        text = f"the copies of {_named(names)} are not equal: {where}"
        yield Alarm("replicas", "differ", text, sorted(ranks), size, names)


def _distance(view: View, number: int, other: View, other_number: int) -> float:
    mine, theirs = _weights(view, number), _weights(other, other_number)
    if len(mine) != len(theirs) or not len(mine):
        return 0.0
    return float((mine - theirs).abs().max())


def _weights(view: View, number: int) -> Tensor:
    """The sampled values of a weight after the step."""
    counts = [Positions.of(described.size).count for described in view.described]
    start = sum(counts[:number])
    return view.post.tensors["weights"][start : start + counts[number]].double()


# -- gradients --


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
            text = f"the optimizer has no gradient of {_named(names)}, but this rank computed one"
            yield Alarm("gradients", "none", text, [view.rank], float(len(names)), names)
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
    alike = _equal_at_first(views)
    counts = {
        view.rank: [Positions.of(d.numel, view.post.check).count for d in view.described]
        for view in views
    }
    groups: dict[Any, list[tuple[View, int]]] = {}
    for view in views:
        for number, described in enumerate(view.described):
            if described.optimized or described.begin or described.end < described.numel:
                who = str(described.ranks) if described.ranks else alike[view.rank]
                groups.setdefault((described.name, who), []).append((view, number))
    pairs: dict[int, list[Pair]] = {view.rank: [] for view in views}
    places = {view.rank: view.post.positions() for view in views}
    compared, names = set(), set()
    for (name, _), members in groups.items():
        names.add(name)
        expected = members[0][0].described[members[0][1]].ranks
        computed = [view.computed(number, counts[view.rank]) for view, number in members]
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
    memory.compared["gradients"] = len(compared)
    _note_left_out(views, names, compared, memory)
    for view in views:
        if pairs[view.rank]:
            yield view, pairs[view.rank]


def _note_left_out(
    views: Sequence[View], names: set[str], compared: set[str], memory: Memory
) -> None:
    left = names - compared
    if not left:
        memory.not_seen.pop("gradients", None)
        return
    reasons = {d.left_out for view in views for d in view.described if d.name in left}
    why = ", ".join(sorted(reason for reason in reasons if reason)) or "no gradient was seen"
    memory.not_seen["gradients"] = (
        f"gradients of {len(left)} of {len(names)} parameters are not compared: {why}"
    )


# -- updates --


def updates(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step moves the weights as the formula of its optimizer says."""
    compared = 0
    for view in views:
        if view.post.fused_scale:
            memory.not_seen["updates"] = "updates are not compared: the optimizer divides itself"
            continue
        results = [result for result in _updates(view) if result is not None]
        compared += len(results)
        wrong = [result for result in results if result.wrong]
        if not wrong or (len(wrong) == len(results) and not any(r.moved for r in wrong)):
            continue  # nothing moved at all: a step that was skipped
        worst = max(wrong, key=lambda result: result.error)
        more = f" (and {len(wrong) - 1} more of {len(results)} parameters)"
        if not worst.moved:
            text = f"{worst.name} was not moved, although it has a gradient{more}"
        else:
            text = (
                f"{worst.name} moved {worst.ratio:.3g} times as far as the formula of "
                f"{view.post.kind} says{more}"
            )
        names = [result.name for result in wrong]
        yield Alarm("updates", "formula", text, [view.rank], worst.error, names)
    memory.compared["updates"] = compared


@dataclass
class Moved:
    """How far a parameter moved, beside the formula of its optimizer."""

    name: str
    error: float
    ratio: float
    moved: bool
    wrong: bool


def _updates(view: View) -> Iterator[Moved | None]:
    values = view.post.tensors.get("updates", torch.zeros(0)).double()
    at = 0

    def take(count: int) -> Tensor:
        nonlocal at
        at += count
        return values[at - count : at]

    for update in view.post.updates:
        weight, gradient = take(update.count), take(update.count)
        state = {name: take(update.count) for name in update.state}
        step = float(take(1)[0]) if update.step < 0 else update.step
        rate = float(take(1)[0]) if update.rate < 0 else update.rate
        described = view.described[update.parameter]
        epsilon = EPSILON.get(described.dtype)
        if epsilon is None or not rate or not torch.isfinite(gradient).all():
            continue
        moved = _weights(view, update.parameter)[: update.count] - weight
        expected = formula(view.post.kind, update, weight, gradient, state, step, rate)
        if expected is None:
            still = bool(gradient.any()) and not bool(moved.any())
            yield Moved(described.name, 0.0, 0.0, not still, still)
            continue
        rounding = 4 * epsilon * float(weight.abs().max()) + 1e-12
        error = float((moved - expected).abs().max())
        wrong = error > max(rounding, 2e-2 * float(expected.abs().max()))
        square = float(expected @ expected)
        ratio = float(moved @ expected) / square if square else math.inf
        yield Moved(described.name, error, ratio, bool(moved.any()), wrong)


def formula(
    kind: str,
    update: Update,
    weight: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    step: float,
    rate: float,
) -> Tensor | None:
    """How far SGD, Adam or AdamW of torch move these values; None for another optimizer."""
    group = update.group
    decay = float(group.get("weight_decay", 0))
    gradient = -gradient if group.get("maximize") else gradient
    if kind == "SGD":
        gradient = gradient + decay * weight
        momentum = float(group.get("momentum", 0))
        if momentum:
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = gradient
            else:
                buffer = momentum * buffer + gradient * (1 - float(group.get("dampening", 0)))
            gradient = gradient + momentum * buffer if group.get("nesterov") else buffer
        return -rate * gradient
    if kind not in ("Adam", "AdamW") or group.get("amsgrad") or "betas" not in group:
        return None
    is_apart = kind == "AdamW" or bool(group.get("decoupled_weight_decay", False))
    gradient = gradient if is_apart else gradient + decay * weight
    first_beta, second_beta = group["betas"]
    number, zero = step + 1, torch.zeros_like(weight)
    mean = first_beta * state.get("exp_avg", zero) + (1 - first_beta) * gradient
    square = second_beta * state.get("exp_avg_sq", zero) + (1 - second_beta) * gradient**2
    root = (square / (1 - second_beta**number)).sqrt() + float(group["eps"])
    moved: Tensor = -rate * mean / (1 - first_beta**number) / root
    return moved - rate * decay * weight if is_apart else moved


def unheld(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """What gets gradients is in an optimizer: not so if that holds tensors of no module."""
    for view in views:
        bits = view.post.tensors.get("bits")
        if view.first_bits is None or bits is None or view.post.check < 3:
            continue
        still = [
            described.name
            for number, described in enumerate(view.described)
            if not described.optimized
            and described.trained
            and int(view.first_bits[number]) == int(bits[number])
        ]
        if still and view.post.foreign and view.post.unheld and view.post.optimizers == 1:
            text = (
                f"{_named(still)} get gradients but never move: the optimizer holds "
                f"{view.post.foreign} tensors that belong to no module"
            )
            yield Alarm("updates", "unheld", text, [view.rank], float(len(still)), still)


# -- losses and rows --


def accumulation(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step counts the loss of each micro-batch once, as a part of their mean."""
    totals, counts = [], set()
    for view in views:
        losses = view.post.tensors.get("losses")
        if losses is None or not len(losses):
            return  # a loss that is not one of torch's functions alone
        root, value, weight, count, scale = losses.double().reshape(-1, 5).T
        root, weight = root / scale, weight / scale
        explained = (root - value * weight).abs() <= LOSS_NEAR * root.abs() + 1e-6
        if not torch.isfinite(root).all() or not explained.all():
            return  # the loss has other terms
        totals.append(float((weight * count).sum()))
        counts.add(len(root))
    if len(counts) != 1:
        return
    micro, ranks = counts.pop(), len(totals)
    total = sum(totals) / ranks
    memory.compared["accumulation"] = micro
    if abs(total - 1) <= LOSS_NEAR:
        return
    who = [view.rank for view in views]
    said = f"the step counts the loss {total:.4g} times instead of once"
    for name, factor in _factors(micro, ranks).items():
        if factor != 1 and abs(total - factor) <= 5 * LOSS_NEAR * factor:
            text = f"{said}: {name} ({micro} micro-batches, {ranks} ranks)"
            yield Alarm("accumulation", "weight", text, who, total)
            return
    if abs(total - 1) <= 0.1:  # another constant is the user's own weight of the loss
        text = f"{said}: it is divided by another number of tokens than it has"
        yield Alarm("accumulation", "tokens", text, who, total)


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


def samples(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step no two ranks of a data-parallel training read the same rows."""
    everyone = len(views)
    parallel = all(any(len(d.ranks) == everyone for d in view.described) for view in views)
    if everyone < 2 or not parallel:
        return
    by_loader: dict[int, dict[int, list[int]]] = {}
    for view in views:
        for loader, rows in view.post.rows:
            by_loader.setdefault(loader, {}).setdefault(view.rank, []).extend(rows)
    for readers in by_loader.values():
        sets = {rank: set(rows) for rank, rows in readers.items() if _are_rows(rows)}
        if len(sets) < 2:
            continue
        rows_once = set().union(*sets.values())
        repeated = sum(map(len, sets.values())) - len(rows_once)
        if repeated >= 0.5 * max(map(len, sets.values())):
            ranks = [
                rank
                for rank, rows in sorted(sets.items())
                if any(rows & others for other, others in sets.items() if other != rank)
            ]
            text = (
                f"{repeated} of the {len(rows_once)} rows of this step were read by more than "
                "one rank"
            )
            yield Alarm("samples", "shared", text, ranks, float(repeated))


def _are_rows(rows: Sequence[int]) -> bool:
    """Whether these are rows of data: random ones, or padding, are equal among themselves."""
    return len(rows) > 0 and not (len(rows) >= 4 and len(set(rows)) < 0.5 * len(rows))


CHECKS: dict[str, Callable[[Sequence[View], Memory], Iterator[Alarm]]] = {
    "replicas": replicas,
    "gradients": gradients,
    "updates": updates,
    "unheld": unheld,
    "accumulation": accumulation,
    "samples": samples,
}
"""Each check, by the name under which an option chooses it."""
