"""What a check looks at: the posts of all ranks of a step, and what was kept of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...training.layouts import Described
from ..posting.packing import ParameterTable
from ..posting.posts import Alarm, Pass, Post
from ..sampling.samples import Positions


@dataclass
class Rate:
    """The learning rate of a group of parameters."""

    last: float
    highest: float


@dataclass
class LossMemory:
    """What the losses of earlier checks have shown."""

    most_micro: int = 0
    """The most micro-batches of a step so far."""
    loss_count: float = 0.0
    """How often the last check found the loss counted, if that was not once, ..."""
    steady: int = 0
    """... and in how many checks before that it was the same."""
    means: int = 0
    """The checks in a row in which the optimizer used the mean of the ranks' gradients."""
    has_terms: bool = False
    """Whether the loss of a step had other terms than the value of torch's function."""
    uncounted: str = ""
    """Why the losses of the last check were not counted; empty if they were."""
    uneven: int = 0
    """The checks in a row in which tokens of micro-batches counted unlike."""


@dataclass
class RowMemory:
    """What ranks have read so far."""

    rows: set[int] = field(default_factory=set)
    """The rows that were read in checked steps."""
    row_values: dict[int, dict[int, int]] = field(default_factory=dict)
    """By loader and number of a row, a number for its values."""
    varied: set[int] = field(default_factory=set)
    """Loaders of which ranks have other values for the same number."""
    begun: list[Pass] = field(default_factory=list)
    """After a load, the epochs of all ranks that were in their middle at its save."""
    orders: list[list[int]] = field(default_factory=list)
    """After a load of the whole training, the first batches of the epochs before its save."""
    passes: dict[tuple[int, int], dict[int, Pass]] = field(default_factory=dict)
    """By loader and epoch, the first epochs after a load that some ranks have read."""
    surprises: dict[Any, float] = field(default_factory=dict)
    """By loader and group of ranks, how much speaks against rows that several ranks read by chance,
    as a logarithm."""
    alike: dict[tuple[int, ...], set[Any]] = field(default_factory=dict)
    """By group of ranks, the gradients and targets of checks in a row in which all had the same."""


@dataclass
class GradientMemory:
    """What the gradients of earlier checks, and of this one, have shown."""

    dropped: int = 0
    """The checks in a row in which gradients were cleared before a step used them."""
    compared: dict[str, bool] = field(default_factory=dict)
    """By name, whether gradients were compared in the last check that looked at them."""
    factor: float = 1.0
    """How many times the mean of the ranks' gradients an optimizer uses in this step."""
    has_factor: bool = True
    """Whether it does so, and not something else."""
    stale: bool = False
    """Whether gradients were used a second time: later ones are of several steps before."""


@dataclass
class ApartMemory:
    """Whether each rank trains alone, as in local SGD."""

    unreduced: bool = False
    """Whether in this step each rank uses the gradient that it computed itself, in a model of which
    no wrapper says that it is reduced, or was told to reduce nothing."""
    unclear: bool = False
    """Whether nobody knows, as all ranks have computed the same gradients of such a model."""
    alone: int = 0
    """The checks so far that were so, ..."""
    alone_since: int = 0
    """... the step of the first one, ..."""
    held: dict[tuple[str, str], Alarm] = field(default_factory=dict)
    """... and the alarms that wait for the loop to average weights."""
    averages: str = ""
    """Why copies of a weight may differ for some steps, as with local SGD."""


@dataclass
class WeightMemory:
    """How weights and rates were in earlier checks."""

    rates: dict[int, dict[str, Rate]] = field(default_factory=dict)
    """By rank and by the other settings of a group, its rate in the last check."""
    still: dict[int, list[Any]] = field(default_factory=dict)
    """By rank, the checks in a row in which weights in 16 bits did not move."""
    at_first: dict[int, set[int]] = field(default_factory=dict)
    """By rank, the parameters that were not finite when training began, on purpose."""
    finite_step: int = 0
    """The last checked step with losses and weights that were finite."""
    was_told: bool = False
    """Whether the alarm of values that are not finite was told."""


@dataclass
class Memory:
    """What the judge keeps of earlier posts."""

    described: dict[int, ParameterTable] = field(default_factory=dict)
    """By rank."""
    first_bits: dict[int, Tensor] = field(default_factory=dict)
    """By rank, the bit sums of the weights when training began."""
    unpaired: bool = False
    """Whether ranks have constructed other optimizers, so that a number is not one for all."""
    trainer: bool = False
    """Whether transformers' Trainer runs the steps."""
    compared: dict[str, int] = field(default_factory=dict)
    """By check, how many parameters the last one compared."""
    saved: list[Any] = field(default_factory=list)
    """The states of the last saves, of this process and of earlier ones."""
    has_saved: bool = False
    """Whether this process has added to them since they were kept."""
    not_seen: dict[str, str] = field(default_factory=dict)
    """By check, what it does not see, in a sentence."""
    losses: LossMemory = field(default_factory=LossMemory)
    data: RowMemory = field(default_factory=RowMemory)
    gradients: GradientMemory = field(default_factory=GradientMemory)
    apart: ApartMemory = field(default_factory=ApartMemory)
    weights: WeightMemory = field(default_factory=WeightMemory)


NOWHERE = torch.zeros(0, dtype=torch.int64)


@dataclass
class View:
    """A post with what the judge remembers of its rank."""

    post: Post
    described: ParameterTable
    first_bits: Tensor | None

    @property
    def rank(self) -> int:
        return self.post.rank

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The parameters that the post looks at."""
        return self.post.parameters.numbers or range(len(self.described))

    @cached_property
    def places(self) -> dict[int, int]:
        """By the number of a parameter, its place among those that the post looks at."""
        return {number: place for place, number in enumerate(self.numbers)}

    @cached_property
    def _computed(self) -> list[Tensor]:
        check = self.post.check
        counts = [Positions.of(self.described[n].numel, check).count for n in self.numbers]
        return list(self.post.tensors["computed"].split(counts))

    @cached_property
    def _weights(self) -> list[Tensor]:
        counts = [Positions.of(self.described[n].size).count for n in self.numbers]
        return list(self.post.tensors["weights"].split(counts))

    def computed(self, number: int) -> Tensor | None:
        """The sum of the gradients that the rank computed for a parameter, at its positions."""
        if str(number) not in self.post.gradients.computed or "computed" not in self.post.tensors:
            return None
        return self._computed[self.places[number]].double()

    @property
    def gradient_places(self) -> Tensor:
        """By used gradient, the parameter, and the first and last numbers of its positions."""
        return self.post.tensors.get("places", NOWHERE).reshape(-1, 3)

    @cached_property
    def used_places(self) -> dict[int, tuple[int, int, int]]:
        """By the number of a parameter, where its gradient begins among the used ones, the first of
        its positions, and how many it has."""
        places, at = {}, 0
        for number, position, end in self.gradient_places.tolist():
            places[number] = at, position, end - position
            at += end - position
        return places

    def is_coarse(self, number: int) -> bool:
        return self.post.gradients.coarse or self.post.gradients.computed.get(str(number)) in (
            "bfloat16",
            "float16",
        )

    def weights(self, number: int) -> Tensor:
        """The sampled values of a weight after the step."""
        return self._weights[self.places[number]].double()

    def bits(self, number: int) -> int:
        """The bit sum of a weight after the step."""
        return int(self.post.tensors["bits"][self.places[number]])


def named(names: Sequence[str]) -> str:
    """``a``, or ``a and 3 more parameters``."""
    others = len(names) - 1
    return (
        f"{names[0]} and {others} more parameter{'s' if others > 1 else ''}" if others else names[0]
    )


Group = Callable[[View, Described], Hashable]


def groups_of(views: Sequence[View]) -> Group:
    """A function by which ranks have the same value if they share a parameter: a wrapper says so,
    or they had the same weights at first.

    Only ranks that agree in all that they share are replicas. One parameter says nothing: a bias of
    zeros is equal on all ranks, also where the weight beside it is split.
    """
    firsts: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for view in views:
        if view.first_bits is not None:
            for number, described in enumerate(view.described):
                if not described.ranks:
                    bits = int(view.first_bits[number])
                    place = described.part, described.name, described.copy
                    firsts.setdefault(place, []).append((view.rank, bits))
    shared: dict[tuple[int, str], list[Any]] = {}
    for (part, *copy), members in sorted(firsts.items()):
        for rank, bits in members if len(members) > 1 else ():
            shared.setdefault((rank, part), []).append((*copy, bits))

    def group(view: View, described: Described) -> Hashable:
        if described.ranks:
            return described.part, tuple(described.ranks)
        parts = {"", described.part}  # ranks that share a part share the parameters that are whole
        alike = [tuple(shared.get((view.rank, part), ())) for part in sorted(parts)]
        return (described.part, *alike) if any(alike) else (described.part, view.rank)

    return group
