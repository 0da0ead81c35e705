"""What is right on all ranks, by a few operations on the samples of a thousand of them together.

A check looks at ranks and parameters one by one, with all exceptions, which takes minutes for a
thousand ranks of a model with 700 parameters. Here is the usual case alone: what is not right here,
or not usual, is left to the check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ....detectors.arithmetic import step_by_formula
from ..posting.packing import BEGIN, END, MARK, OPTIMIZED, SIZE, ParameterTable
from ..sampling.samples import Positions
from .views import View

ROWS = 64
"""Ranks whose samples are converted at once: a thousand would need 100 MB."""

MIX = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Odd numbers that spread a change over all bits of a product (splitmix64)."""


def table(view: View) -> ParameterTable:
    """The parameters of a rank, as columns."""
    return ParameterTable.of(view.described)


def looked(view: View) -> Tensor:
    """The numbers of the parameters that a post looks at."""
    return torch.tensor(list(view.numbers), dtype=torch.int64)


# -- replicas --


def equal_copies(views: Sequence[View]) -> int | None:
    """How many weights have copies, if all are equal that were so at first; otherwise None.

    More ranks are compared than the check does: it knows which copies are the same on purpose.
    """
    numbers: dict[str, int] = {}
    keys, bits = [], []
    for view in views:
        if view.first_bits is not None:
            at = looked(view)
            names, marks = _copies(table(view), numbers)
            keys.append(_mixed(names[at], marks[at], view.first_bits[at]))
            bits.append(view.post.tensors["bits"])
    if not keys:
        return None
    key, order = torch.cat(keys).sort()
    bit = torch.cat(bits)[order]
    is_same = key[1:] == key[:-1]
    if bool((is_same & (bit[1:] != bit[:-1])).any()):
        return None
    begins = is_same & ~torch.cat([torch.zeros(1, dtype=torch.bool), is_same])[:-1]
    return int(begins.sum())


def _copies(parameters: ParameterTable, numbers: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Two numbers for each parameter: copies of the same values have the same."""

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers) + 1)

    marks = torch.tensor([number(mark) for mark in parameters.marks], dtype=torch.int64)
    is_named = torch.tensor([mark[0] == "+" for mark in parameters.marks])
    at = parameters.numbers[MARK]
    return torch.where(is_named[at], parameters.columns.hashes, 0), marks[at]


def _mixed(*columns: Tensor) -> Tensor:
    """A number for each row of some columns of integers: other rows have another one."""
    total = torch.zeros_like(columns[0])
    for column in columns:
        total = total * MIX[0] + column  # all of it modulo 2**64
        for factor in MIX[1:]:
            total = (total ^ (total >> 31)) * factor
        total = total ^ (total >> 29)
    return total


# -- gradients --


def right_gradients(views: Sequence[View], near: float) -> dict[str, bool] | None:
    """By the name of each parameter whether its gradients were compared, if all of them are right;
    otherwise None."""
    blocks: dict[Any, list[View]] = {}
    if any(view.post.gradients.partial or view.post.gradients.partial_used for view in views):
        return None  # tensor parallelism adds them up
    for view in views:
        key = table(view).columns.digest, tuple(view.post.numbers), view.post.check
        blocks.setdefault(key, []).append(view)
    compared: dict[str, bool] = {}
    for members in blocks.values():
        names = _right_gradients(members, near)
        if names is None:
            return None
        for name, is_compared in names.items():
            compared[name] = compared.get(name, False) or is_compared
    return compared


def _right_gradients(views: Sequence[View], near: float) -> dict[str, bool] | None:
    """The same for ranks with the same parameters."""
    columns, at = table(views[0]).columns, looked(views[0])
    numels = [columns.numels[number] for number in at.tolist()]
    counts = torch.tensor(
        [Positions.of(n, views[0].post.check).count for n in numels], dtype=torch.int64
    )
    numbers = torch.stack([table(view).numbers for view in views])[:, :, at]
    is_held = (
        (numbers[:, OPTIMIZED] > 0)
        | (numbers[:, BEGIN] > 0)
        | (numbers[:, END] < torch.tensor(numels))
    )
    # One process alone needs no wrapper that says which ranks are averaged.
    least = 1 if len(views) == 1 else 0
    sizes = [len(columns.groups[columns.group[number]]) for number in at.tolist()]
    expected = torch.tensor(sizes).clamp(min=least)
    summed = _sums(views, counts, is_held)
    if summed is None:
        return None
    total, largest, present = summed
    members = is_held.sum(0)
    has_some = present & (members > 0)
    if bool((has_some & (members != expected)).any()):
        return None  # no wrapper says which ranks are averaged, or not all of them are here
    parameter = torch.repeat_interleave(torch.arange(len(counts)), counts)
    mean = total / members.clamp(min=1)[parameter]
    if not bool(torch.isfinite(mean).all()):
        return None
    slots = torch.full((len(columns.names),), -1)
    slots[at] = torch.arange(len(at))
    compared = torch.zeros(len(at), dtype=torch.bool)
    starts = counts.cumsum(0) - counts
    for begin in range(0, len(views), ROWS):
        rows = slice(begin, begin + ROWS)
        place = _places(views[rows])
        if place is None:
            return None
        row, slot, position, count = place[0], slots[place[1]], place[2], place[3] - place[2]
        keep = (slot >= 0) & has_some[slot] & is_held[rows][row, slot]
        if not bool(keep.all()):
            return None
        compared[slot] = True
        pair = torch.repeat_interleave(torch.arange(len(slot)), count)
        where = torch.arange(len(pair)) - (count.cumsum(0) - count)[pair]
        where += (position + starts[slot])[pair]
        gradients = torch.cat([view.post.tensors["used"] for view in views[rows]]).double()
        share = count / counts[slot].clamp(min=1)
        square = torch.zeros(len(views[rows]), dtype=torch.float64)
        square = square.index_add(0, row, largest[slot] ** 2 * share)
        if not _are_right(gradients, mean[where], row[pair], square, near):
            return None
    names = [columns.names[number] for number in at.tolist()]
    is_held_by_any = is_held.any(0).tolist()
    return {name: bool(c) for name, c, held in zip(names, compared, is_held_by_any) if held}


def _sums(
    views: Sequence[View], counts: Tensor, is_held: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The sums of the gradients of all ranks, the largest norm of a parameter, and whether any rank
    has one; None if one was sampled otherwise."""
    size = int(counts.sum())
    parameter = torch.repeat_interleave(torch.arange(len(counts)), counts)
    total = torch.zeros(size, dtype=torch.float64)
    largest = torch.zeros(len(counts), dtype=torch.float64)
    present = torch.zeros(len(counts), dtype=torch.bool)
    forms: dict[str, Tensor] = {}
    for begin in range(0, len(views), ROWS):
        rows, has = views[begin : begin + ROWS], []
        for view in rows:
            form = view.post.form or str(view.rank)
            if form not in forms:
                forms[form] = torch.tensor(
                    [str(n) in view.post.gradients.computed for n in view.numbers]
                )
            has.append(forms[form])
        computed = [view.post.tensors.get("computed", torch.zeros(0)) for view in rows]
        if any(len(values) != size for values in computed):
            return None
        mask = torch.stack(has) & is_held[begin : begin + ROWS]
        values = torch.stack(computed).double().masked_fill(~mask[:, parameter], 0.0)
        total += values.sum(0)
        norms = torch.zeros(mask.shape, dtype=torch.float64)
        norms.index_add_(1, parameter, values**2)
        largest = torch.maximum(largest, norms.amax(0).sqrt())
        present |= mask.any(0)
    return total, largest, present


def _places(views: Sequence[View]) -> Tensor | None:
    """The ranks, as numbers of rows, and what ``used`` of a post says, as columns; None if there
    are more or fewer values."""
    places = []
    for row, view in enumerate(views):
        place, gradients = view.post.places(), view.post.tensors.get("used")
        if gradients is None or len(gradients) != int((place[:, 2] - place[:, 1]).sum()):
            return None
        places.append(torch.cat([torch.full((len(place), 1), row), place], 1))
    return torch.cat(places).T


def _are_right(gradients: Tensor, mean: Tensor, row: Tensor, largest: Tensor, near: float) -> bool:
    """Whether the gradients that ranks use are the means; ``largest`` has the squares of the norms
    of the largest gradients."""

    def total(values: Tensor) -> Tensor:
        return torch.zeros(len(largest), dtype=torch.float64).index_add_(0, row, values)

    square = total(mean**2)
    whole, ratio = total(gradients**2), total(gradients * mean) / square
    error = total((gradients - ratio[row] * mean) ** 2).sqrt()
    size = torch.maximum(whole.sqrt(), ratio * largest.sqrt())
    is_right = (error <= near * size) & ((ratio - 1).abs() <= near)  # not so of what is not finite
    has_values = torch.zeros(len(largest), dtype=torch.bool).index_fill_(0, row, True)
    return bool((is_right | ~has_values).all())


# -- updates --


def right_updates(views: Sequence[View], epsilons: dict[str, float]) -> tuple[set[int], int]:
    """The ranks all of whose updates are right, and how many updates were compared."""
    groups: dict[Any, list[View]] = {}
    for view in views:
        if view.post.form and not view.post.loop.fused_scale:
            values = tuple(_scalars(view))
            sizes = tuple(table(view).numbers[SIZE].tolist())
            key = view.post.form, table(view).columns.digest, sizes, values
            groups.setdefault(key, []).append(view)
    right_numbers, compared = set(), 0
    for group in groups.values():
        is_right, count = _right_updates(group, epsilons)
        for view, is_right_here in zip(group, is_right.tolist()):
            if is_right_here:
                right_numbers.add(view.rank)
                compared += count
    return right_numbers, compared


def _scalars(view: View) -> Iterator[float]:
    """The steps and rates that are on a device, and so among the values."""
    at = 0
    for update in view.post.updates:
        at += update.count * (2 + len(update.state))
        for value in (update.step, update.rate):
            if value < 0:
                yield float(view.post.tensors["updates"][at])
                at += 1


def _right_updates(views: Sequence[View], epsilons: dict[str, float]) -> tuple[Tensor, int]:
    """Which of some ranks with the same form have right updates, and how many each has."""
    post = views[0].post
    is_right = torch.ones(len(views), dtype=torch.bool)
    if not post.updates:
        return is_right, 0
    values = torch.stack([view.post.tensors["updates"] for view in views]).double()
    weights = torch.stack([view.post.tensors["weights"] for view in views]).double()
    for batch in _batches(views[0]):
        epsilon, group = epsilons.get(batch.dtype), {**batch.group, "lr": batch.rate}
        weight, gradient, *moments = batch.values(values)
        state = dict(zip(batch.state, moments))
        expected = step_by_formula(
            post.kind, group, weight, gradient, {**state, "step": batch.step}
        )
        if epsilon is None or not batch.rate or expected is None or not batch.count:
            return torch.zeros(len(views), dtype=torch.bool), 0
        rounding = 4 * epsilon * weight.abs().amax(-1) + 1e-12
        error = (batch.after(weights) - weight - expected).abs().amax(-1)
        is_near = error <= torch.maximum(rounding, 2e-2 * expected.abs().amax(-1))
        is_near &= torch.isfinite(gradient).all(-1)
        if batch.step and state:  # steps that were counted without a gradient are a fault
            is_near &= torch.stack([moment.any(-1) for moment in moments]).any(0)
        is_right &= is_near.all(1)
    return is_right, len(post.updates)


@dataclass
class _Batch:
    """Updates with the same settings and as many values, to be compared together."""

    count: int
    """Values of each tensor of an update."""
    state: Sequence[str]
    step: float
    rate: float
    dtype: str
    group: dict[str, Any]
    begins: list[int] = field(default_factory=list)
    """By update, where its values begin in ``updates``, ..."""
    weight_begins: list[int] = field(default_factory=list)
    """... and in ``weights``."""

    def values(self, values: Tensor) -> Sequence[Tensor]:
        """The weights before the step, the gradients, and the moments: by rank, update, value."""
        tensors = 2 + len(self.state)
        parts = [values[:, begin : begin + tensors * self.count] for begin in self.begins]
        shape = len(values), len(parts), tensors, self.count
        return torch.stack(parts, 1).reshape(shape).unbind(2)

    def after(self, weights: Tensor) -> Tensor:
        """The weights after the step, likewise."""
        return torch.stack([weights[:, at : at + self.count] for at in self.weight_begins], 1)


def _batches(view: View) -> list[_Batch]:
    """The updates of a post, by what they have in common."""
    batches: dict[Any, _Batch] = {}
    values, columns = view.post.tensors["updates"], table(view).columns
    sizes = table(view).numbers[SIZE].tolist()
    counts = [Positions.of(sizes[number]).count for number in view.numbers]
    weight_begins = [0, *accumulate(counts)]
    end = 0
    for update in view.post.updates:
        begin, end = end, end + update.count * (2 + len(update.state))
        step, rate = update.step, update.rate
        if step < 0:  # it is on a device, and so among the values
            step, end = float(values[end]), end + 1
        if rate < 0:
            rate, end = float(values[end]), end + 1
        dtype = columns.dtypes[update.parameter]
        key = update.count, tuple(update.state), step, rate, dtype, str(update.group)
        batch = batches.get(key)
        if batch is None:
            batch = _Batch(update.count, update.state, step, rate, dtype, update.group)
            batches[key] = batch
        batch.begins.append(begin)
        batch.weight_begins.append(weight_begins[view.places[update.parameter]])
    return list(batches.values())
