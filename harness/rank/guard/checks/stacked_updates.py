"""The updates that ranks sampled, as tensors of all ranks that have the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ....detectors.arithmetic import step_by_formula
from ..posting.packing import SIZE
from ..posting.posts import Update
from ..sampling.samples import Positions
from .views import View


@dataclass
class Updates:
    """Updates with the same settings and as many values. Its tensors are by rank, update and
    value."""

    kind: str
    """The class of the optimizer."""
    dtype: str
    """In which it steps."""
    rate: float
    step: float
    """Its count of steps before this one."""
    group: Mapping[str, Any]
    """The settings of the group of these parameters."""
    names: Sequence[str]
    """Those of the moments that were there before the step."""
    values: Tensor
    """The weights before the step, the gradients and the moments, in the last dimension but one."""
    after: Tensor
    """The weights after the step."""
    numbers: list[int] = field(default_factory=list)
    """Those of the parameters, ..."""
    places: list[int] = field(default_factory=list)
    """... and those of the updates in a post."""

    @cached_property
    def weight(self) -> Tensor:
        """The weights before the step."""
        return self.values.select(-2, 0)

    @cached_property
    def gradient(self) -> Tensor:
        """What the optimizer used."""
        return self.values.select(-2, 1)

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """The moments before the step."""
        return {name: self.values.select(-2, 2 + at) for at, name in enumerate(self.names)}

    @cached_property
    def moved(self) -> Tensor:
        """How far the values moved."""
        return self.after - self.weight

    @cached_property
    def expected(self) -> Tensor | None:
        """How far the formula of the optimizer moves them; None if it is not known."""
        group = {**self.group, "lr": self.rate}
        state = {**self.state, "step": self.step}
        return step_by_formula(self.kind, group, self.weight, self.gradient, state)


def alike(views: Iterable[View]) -> Iterator[list[View]]:
    """The ranks, in groups that have updates of the same parameters with the same settings."""
    groups: dict[Any, list[View]] = {}
    for view in views:
        updates = view.post.parameters.updates
        on_device = any(one.step < 0 or one.rate < 0 for one in updates)
        scalars = tuple((one.step, one.rate) for one in _begins(view)) if on_device else ()
        sizes = tuple(view.described.numbers[SIZE].tolist())
        form = view.post.run.form or view.rank
        key = form, view.described.columns.digest, sizes, scalars
        groups.setdefault(key, []).append(view)
    yield from groups.values()


def stacked(views: Sequence[View]) -> list[Updates]:
    """The updates of ranks that are alike, by what they have in common."""
    view, batches = views[0], dict[Any, list[_Begin]]()
    if not view.post.parameters.updates:
        return []
    dtypes = view.described.columns.dtypes
    for begin in _begins(view):
        update = begin.update
        settings = tuple(update.state), begin.step, begin.rate, dtypes[update.parameter]
        key = update.count, *settings, str(update.group)
        batches.setdefault(key, []).append(begin)
    values = torch.stack([one.post.tensors["updates"] for one in views]).double()
    weights = torch.stack([one.post.tensors["weights"] for one in views]).double()
    counts = [Positions.of(view.described[number].size).count for number in view.numbers]
    ends = [0, *accumulate(counts)]
    weight_begins = [ends[view.places[update.parameter]] for update in view.post.parameters.updates]
    return [_stacked(view, begins, values, weights, weight_begins) for begins in batches.values()]


@dataclass
class _Begin:
    """Where the values of an update begin in ``updates``, and its step and rate, which may be on a
    device, and so among the values."""

    place: int
    update: Update
    at: int
    step: float
    rate: float


def _begins(view: View) -> Iterator[_Begin]:
    end = 0
    for place, update in enumerate(view.post.parameters.updates):
        begin, end = end, end + update.count * (2 + len(update.state))
        step, rate = update.step, update.rate
        if step < 0:
            step, end = float(view.post.tensors["updates"][end]), end + 1
        if rate < 0:
            rate, end = float(view.post.tensors["updates"][end]), end + 1
        yield _Begin(place, update, begin, step, rate)


def _stacked(
    view: View,
    begins: Sequence[_Begin],
    values: Tensor,
    weights: Tensor,
    weight_begins: Sequence[int],
) -> Updates:
    first = begins[0]
    count, tensors = first.update.count, 2 + len(first.update.state)
    parts = [values[:, one.at : one.at + tensors * count] for one in begins]
    starts = [weight_begins[one.place] for one in begins]
    return Updates(
        view.post.parameters.kind,
        view.described.columns.dtypes[first.update.parameter],
        first.rate,
        first.step,
        first.update.group,
        first.update.state,
        torch.stack(parts, 1).reshape(len(values), len(parts), tensors, count),
        torch.stack([weights[:, start : start + count] for start in starts], 1),
        [one.update.parameter for one in begins],
        [one.place for one in begins],
    )
