"""What is right on all ranks, by a few operations on the samples of a thousand of them together.

A check looks at ranks and parameters one by one, with all exceptions, which takes minutes for a
thousand ranks of a model with 700 parameters. Here is the usual case alone: what is not right here,
or not usual, is left to the check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..posting.packing import BEGIN, END, MARK, OPTIMIZED
from ..sampling.samples import Positions
from .views import View

MIX = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Odd numbers that spread a change over all bits of a product (splitmix64)."""


def looked(view: View) -> Tensor:
    """The numbers of the parameters that a post looks at."""
    return torch.tensor(list(view.numbers), dtype=torch.int64)


# -- replicas --


def unequal_copies(views: Sequence[View]) -> tuple[int, list[tuple[View, int]]]:
    """How many weights have copies, and, with the numbers of their parameters, the ranks of those
    that were equal at first and are not equal now.

    More ranks are compared than the check does: it knows which copies are the same on purpose.
    """
    numbers: dict[str, int] = {}
    keys, bits, places = [], [], []
    for view in views:
        if view.first_bits is not None:
            at, table = looked(view), view.described
            of_marks = [numbers.setdefault(mark, len(numbers)) for mark in table.marks]
            marks = torch.tensor(of_marks, dtype=torch.int64)[table.numbers[MARK][at]]
            keys.append(_mixed(table.columns.hashes[at], marks, view.first_bits[at]))
            bits.append(view.post.tensors["bits"])
            places += [(view, number) for number in view.numbers]
    if not keys:
        return 0, []
    key, order = torch.cat(keys).sort()
    bit = torch.cat(bits)[order]
    is_same = key[1:] == key[:-1]
    begins = is_same & ~torch.cat([torch.zeros(1, dtype=torch.bool), is_same])[:-1]
    unequal = key[1:][is_same & (bit[1:] != bit[:-1])]
    rows = order[torch.isin(key, unequal)].sort().values.tolist() if len(unequal) else []
    return int(begins.sum()), [places[row] for row in rows]


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
        key = view.described.columns.digest, tuple(view.post.parameters.numbers), view.post.check
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
    columns, at = views[0].described.columns, looked(views[0])
    numels = [columns.numels[number] for number in at.tolist()]
    counts = torch.tensor(
        [Positions.of(n, views[0].post.check).count for n in numels], dtype=torch.int64
    )
    numbers = torch.stack([view.described.numbers for view in views])[:, :, at]
    is_held = (
        (numbers[:, OPTIMIZED] > 0)
        | (numbers[:, BEGIN] > 0)
        | (numbers[:, END] < torch.tensor(numels))
    )
    # One process alone needs no wrapper that says which ranks are averaged.
    least = 1 if len(views) == 1 else 0
    sizes = [len(columns.groups[columns.group[number]]) for number in at.tolist()]
    expected = torch.tensor(sizes).clamp(min=least)
    parameter = torch.repeat_interleave(torch.arange(len(counts)), counts)
    computed = [view.post.tensors.get("computed", torch.zeros(0)) for view in views]
    if any(len(values) != len(parameter) for values in computed):
        return None  # one was sampled otherwise
    has = [[str(n) in view.post.gradients.computed for n in view.numbers] for view in views]
    mask = torch.tensor(has, dtype=torch.bool) & is_held
    values = torch.stack(computed).double().masked_fill(~mask[:, parameter], 0.0)
    norms = torch.zeros(mask.shape, dtype=torch.float64).index_add_(1, parameter, values**2)
    largest, members = norms.amax(0).sqrt(), is_held.sum(0)
    has_some = mask.any(0) & (members > 0)
    if bool((has_some & (members != expected)).any()):
        return None  # no wrapper says which ranks are averaged, or not all of them are here
    mean = values.sum(0) / members.clamp(min=1)[parameter]
    place = _places(views)
    if not bool(torch.isfinite(mean).all()) or place is None:
        return None
    slots = torch.full((len(columns.names),), -1)
    slots[at] = torch.arange(len(at))
    row, slot, position, count = place[0], slots[place[1]], place[2], place[3] - place[2]
    keep = (slot >= 0) & has_some[slot] & is_held[row, slot]
    if not bool(keep.all()):
        return None
    compared = torch.zeros(len(at), dtype=torch.bool).index_fill_(0, slot, True)
    pair = torch.repeat_interleave(torch.arange(len(slot)), count)
    where = torch.arange(len(pair)) - (count.cumsum(0) - count)[pair]
    where += (position + (counts.cumsum(0) - counts)[slot])[pair]
    gradients = torch.cat([view.post.tensors["used"] for view in views]).double()
    share = count / counts[slot].clamp(min=1)
    square = torch.zeros(len(views), dtype=torch.float64)
    square = square.index_add(0, row, largest[slot] ** 2 * share)
    if not _are_right(gradients, mean[where], row[pair], square, near):
        return None
    names = [columns.names[number] for number in at.tolist()]
    is_held_by_any = is_held.any(0).tolist()
    return {name: bool(c) for name, c, held in zip(names, compared, is_held_by_any) if held}


def _places(views: Sequence[View]) -> Tensor | None:
    """The ranks, as numbers of rows, and what ``used`` of a post says, as columns; None if there
    are more or fewer values."""
    places = []
    for row, view in enumerate(views):
        place, gradients = view.gradient_places, view.post.tensors.get("used")
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
