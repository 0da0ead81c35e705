"""A step moves the weights as the formula of its optimizer says, and what gets gradients moves. All
ranks use the same settings, and weights are their copies in fp32, rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....detectors.arithmetic import step_by_formula
from ...training.layouts import Described
from . import together
from .views import Alarm, Memory, View, named

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def updates(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A step moves the weights as the formula of its optimizer says."""
    right_numbers, compared = together.right_updates(views, EPSILON)
    for view in views:
        if view.rank in right_numbers:
            continue
        if view.post.loop.fused_scale:
            memory.not_seen["updates"] = "updates are not compared: the optimizer divides itself"
            continue
        if view.post.loop.hooked:
            memory.not_seen["updates"] = "updates are not compared: the optimizer has hooks"
            continue
        results = list(_updates(view))
        compared += len(results)
        counts = {result.counted for result in results if result.has_moments}
        if view.post.check == 1 and counts == {1.0}:  # a loop may keep the count of a load
            text = (
                f"{view.post.kind} counts a step before its first gradient, so that its first "
                "steps are too short"
            )
            yield Alarm("updates", "counted", text, [view.rank], 1.0)
        wrong_results = [result for result in results if result.wrong]
        if not wrong_results or (
            len(wrong_results) == len(results) and not any(r.moved for r in wrong_results)
        ):
            continue  # nothing moved at all: a step that was skipped
        worst = max(wrong_results, key=lambda result: result.error)
        others = f" (and {len(wrong_results) - 1} more of {len(results)} parameters)"
        if not worst.moved:
            text = f"{worst.name} was not moved, although it has a gradient{others}"
        else:
            text = (
                f"{worst.name} moved {worst.ratio:.3g} times as far as the formula of "
                f"{view.post.kind} says{others}"
            )
        names = [result.name for result in wrong_results]
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
    has_moments: bool = False
    counted: float = 0.0
    """Steps that the optimizer has counted, if its moments are still zero."""


@dataclass
class SampledUpdate:
    """What a step did to the sampled values of a parameter."""

    number: int
    """Of the parameter."""
    described: Described
    weight: Tensor
    """Before the step."""
    gradient: Tensor
    state: Mapping[str, Tensor]
    """The optimizer's moments before the step, ..."""
    step: float
    """... and its count of steps."""
    moved: Tensor
    """How far the values moved."""
    rate: float
    group: str
    """The settings of the parameter's group without the rate, as text."""
    expected: Tensor | None
    """How far the formula of the optimizer moves them; None if it is not known."""


def sampled_updates(view: View) -> Iterator[SampledUpdate]:
    """The updates that a rank sampled."""
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
        group = {**update.group, "lr": rate}
        kind, moments = view.post.kind, {**state, "step": step}
        yield SampledUpdate(
            update.parameter,
            view.described[update.parameter],
            weight,
            gradient,
            state,
            step,
            view.weights(update.parameter)[: update.count] - weight,
            rate,
            str({name: value for name, value in update.group.items() if name != "lr"}),
            step_by_formula(kind, group, weight, gradient, moments),
        )


def _updates(view: View) -> Iterator[Moved]:
    for update in sampled_updates(view):
        weight, gradient, movement = update.weight, update.gradient, update.moved
        described, expected = update.described, update.expected
        epsilon = EPSILON.get(described.stepped)
        if expected is None:
            continue  # an optimizer of no known formula may leave some as they are
        if epsilon is None or not update.rate or not torch.isfinite(gradient).all():
            continue
        rounding = 4 * epsilon * float(weight.abs().max()) + 1e-12
        error = float((movement - expected).abs().max())
        is_wrong = error > max(rounding, 2e-2 * float(expected.abs().max()))
        square = float(expected @ expected)
        ratio = float(movement @ expected) / square if square else math.inf
        has_moments = "exp_avg" in update.state and bool(gradient.any())
        is_new = has_moments and not any(moment.any() for moment in update.state.values())
        counted = update.step if is_new else 0.0
        yield Moved(
            described.name, error, ratio, bool(movement.any()), is_wrong, has_moments, counted
        )


def unheld(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """What gets gradients is in an optimizer: not so if that holds tensors of no module."""
    for view in views:
        bits = view.post.tensors.get("bits")
        post = view.post
        if view.first_bits is None or bits is None or post.check < 3:
            continue
        if not post.gradients.unheld:
            continue
        still = [
            described.name
            for number, described in ((n, view.described[n]) for n in view.numbers)
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
            verbs = "get gradients but never move"
            if len(still) == 1:
                verbs = "gets gradients but never moves"
            text = (
                f"{named(still)} {verbs}: the optimizer holds "
                f"{post.gradients.foreign} tensors that belong to no module and have no gradient"
            )
            yield Alarm("updates", "unheld", text, [view.rank], float(len(still)), still)


SAME = ("lr", "weight_decay", "momentum", "betas", "eps", "d")
"""Settings of a group that say how far a step goes; ``d`` is the step size that Prodigy and
D-Adaptation choose. Others may be of one rank, such as a seed."""


def groups(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Ranks step a parameter with the same settings: where each has a shard, no copies would show
    that they do not."""
    firsts: dict[Any, tuple[Any, int]] = {}
    forms = set()
    for view in views:
        if view.post.form in forms:
            continue  # the same settings as those of a rank before
        forms.update([view.post.form] if view.post.form else [])
        for update in view.post.updates:
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
        one == other or abs(one - other) <= 1e-6 * abs(other) for one, other in zip(values, others)
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
