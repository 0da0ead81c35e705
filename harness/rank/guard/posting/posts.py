"""A post: what one rank tells rank 0 of a checked step; ``packing`` makes bytes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...training.layouts import Described
from .budget import Cost

LAST = 0
"""The number of the check that is no step's: what ranks post when the training is over."""

SAMPLED = 1024
"""About so many rows of a dataset are followed in an epoch: a limit of a post's size."""


@dataclass
class Update:
    """How a parameter was updated: what the judge needs beside the values in ``updates``."""

    parameter: int
    count: int
    """Values of each tensor."""
    state: list[str]
    """The names of the optimizer's moments that were there before the step."""
    step: float
    """The optimizer's count of steps before this one; negative if it is among the values."""
    rate: float
    """The learning rate; negative if it is among the values."""
    group: dict[str, Any]
    """The settings of the parameter's group."""


@dataclass
class Alarm:
    """A fault of one step."""

    check: str
    kind: str
    text: str
    ranks: list[int] = field(default_factory=list)
    """Empty of a fault that a rank sees alone."""
    size: float = 0.0
    parameters: list[str] = field(default_factory=list)
    step: int = 0
    """The step of the fault, if that is not the one of the posts."""
    factors: list[str] = field(default_factory=list)
    """What ``size`` may be in terms of ranks and micro-batches, such as ``k`` or ``1/ranks``."""

    @property
    def signs(self) -> set[str]:
        """Names of the fault: bugs of the catalogue with the same sign may be its reason."""
        sign = f"{self.check}/{self.kind}"
        return {f"{sign}/{factor}" for factor in self.factors} or {sign}


def sampled_rows(size: int) -> range:
    """The rows of a dataset of which rank 0 learns how often an epoch has them."""
    return range(0, size, max(1, size // SAMPLED))


@dataclass
class Pass:
    """An epoch of a loader that trains: one that is over, or the beginning of one."""

    loader: int
    number: int
    """Which of the loader's epochs that train it is, from 1 on."""
    size: int
    """The rows of the dataset."""
    rows: int
    """The rows that this rank has read."""
    batch: int
    """The most rows of a batch."""
    sampled: list[int]
    """Those of them that are among ``sampled_rows``."""


@dataclass
class EpochSample:
    """Rows that a loader gave in an epoch, if the ranks split its dataset, by their numbers."""

    loader: int
    epoch: int
    surprise: float
    """How improbable it is, as a logarithm, that no row came twice so far by chance."""
    rows: list[int]
    step: list[list[int]]
    """Rows of this step, each with a number for its values."""


@dataclass
class Part:
    """What a rank has of a tensor of the training."""

    name: str
    """Of the parameter."""
    kind: str
    place: str
    """Ranks with the same place have copies of the same values."""
    count: int
    dtype: str
    width: int
    """Bytes of a value."""


@dataclass
class TrainingState:
    """The state on one rank, or what it reads and writes."""

    event: str
    step: int
    """The steps of this process."""
    path: str = ""
    """Of the checkpoint, if that is known."""
    stamp: str = ""
    """Of what was loaded: another file at the same path has another one."""
    count: float = 0.0
    """The steps that the optimizer has taken, as its state says."""
    is_promised: bool = False
    """Whether the load was to give the optimizer its state."""
    rates: list[Any] = field(default_factory=list)
    """The learning rate of each group: at a save, or as it was loaded."""
    is_rate_kept: bool = False
    """Whether a load into a state that was there has left the rates as they were."""
    begun: list[Pass] = field(default_factory=list)
    """At a save, the epoch of each loader that is in its middle."""
    orders: list[list[int]] = field(default_factory=list)
    """At a save, a number for each of the first batches of a loader's last epoch."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """What is no tensor in a file."""
    changed: list[str] = field(default_factory=list)
    """After a load, the parameters that the loop has written since, or their state."""
    parts: list[list[Any]] = field(default_factory=list)
    """The fields of each ``Part``."""

    def of_parts(self, sums: Sequence[int]) -> Iterator[tuple[Part, int]]:
        """Each part with its sum, as a number that is not negative."""
        for fields, number in zip(self.parts, sums):
            part = Part(*fields)
            yield part, number % (1 << 8 * part.width)


@dataclass
class GradientFacts:
    """The gradients of a step."""

    computed: dict[str, str] = field(default_factory=dict)
    """By the number of a parameter, the type of the gradients that this rank computed for it."""
    partial: dict[str, int] = field(default_factory=dict)
    """By the number of a parameter, of how many ranks the computed gradients must be added, as
    tensor parallelism leaves that to be done later."""
    partial_used: dict[str, int] = field(default_factory=dict)
    """The same for the gradients that the optimizer uses."""
    without_gradient: list[str] = field(default_factory=list)
    """Parameters for which a gradient was computed and the optimizer has none."""
    edited: bool = False
    """Whether the loop has written gradients after the last backward of the step."""
    stale: bool = False
    """Whether the step before left some gradients, and nobody has written them since."""
    coarse: bool = False
    """Whether gradients travel in 16 bits."""
    lossy: str = ""
    """A reduction that is no mean on purpose, such as PowerSGD."""
    dropped: int = 0
    """How often gradients were cleared before a step used them."""
    unheld: list[str] = field(default_factory=list)
    """Parameters with gradients that no optimizer has."""
    foreign: int = 0
    """Tensors of the optimizer that belong to no module and have no gradient."""


@dataclass
class LossFacts:
    """The losses of a step, and its micro-batches."""

    whole_losses: bool = False
    """Whether the values of its losses are whole ones, not those of torch's functions."""
    uncounted: str = ""
    """Why its losses are not counted: each is made of ``several``, they are ``separate``, or guard
    knows ``none`` of them."""
    goes_on: bool = False
    """Whether its backwards went on with gradients of other ranks, as a stage of a pipeline."""
    factor: float = 1.0
    """The number that multiplies a loss of classes and its other terms, of which only the former is
    divided by a number; 1 if micro-batches have other ones."""
    weight: float = 1.0
    """The number, such as 0.5, that may be the loop's own weight of its losses: no count of ranks
    or of micro-batches; 0 if each has another one."""
    gathers: bool = False
    """Whether the loop has gathered tensors of all ranks before a loss."""
    separate: bool = False
    """Whether the backwards of the step are those of several losses of the same rows."""
    has_batches: bool = False
    """Whether each backward of the step is known to be that of a batch of its own."""
    planned: int = 0
    """The micro-batches of a step that its loop was asked for; 0 if that is not known."""
    equal_steps: int = 0
    """The steps in a row with as many micro-batches as this one."""
    is_whole: bool = False
    """Whether the step had as many micro-batches as the first one, and several."""


@dataclass
class LoopFacts:
    """What the loop does around its steps."""

    hooked: bool = False
    """Whether the loop has hooks around the optimizer's step."""
    outer: bool = False
    """Whether another optimizer has the same parameters, as the outer one of DiLoCo."""
    joined: int = 0
    """The steps before the last end of a ``join()``, in which ranks may have unlike numbers."""
    unreduced: bool = False
    """Whether the loop told DDP to reduce nothing in all backwards of the step."""
    averages: str = ""
    """Why copies of a weight may differ for some steps on purpose, as with local SGD."""
    fused_scale: bool = False
    """Whether the optimizer divides by a loss scale itself."""
    reduced: int = 0
    """The values that the loop itself reduced in the step, after a backward."""


@dataclass
class RowFacts:
    """The rows that a rank has read."""

    rows: list[tuple[int, list[int]]] = field(default_factory=list)
    """The loaders that were read in this step, and the rows."""
    epochs: list[EpochSample] = field(default_factory=list)
    """What the epoch has given so far of datasets that the ranks split."""
    passes: list[Pass] = field(default_factory=list)
    """The epochs that have ended since the last post."""
    orders: list[list[int]] = field(default_factory=list)
    """The first batches of epochs that are the first ones after a load."""


@dataclass
class OutputFacts:
    """What modules computed."""

    calls: list[list[Any]] = field(default_factory=list)
    """Where a loss was not finite, the modules that this step called, in the order in which they
    ended: name, class, and whether no other module contains it."""
    opaque: str = ""
    """Why their outputs cannot be looked at."""


@dataclass
class ParameterFacts:
    """The parameters of a training, and their updates."""

    kind: str = ""
    """The class of the optimizer."""
    described: Sequence[Described] = field(default_factory=list)
    """Empty if they are those of the post before."""
    numbers: list[int] = field(default_factory=list)
    """Those that this check looks at; empty: all. ``computed``, ``weights`` and ``bits`` have these
    parameters, in this order; ``first_bits`` has all."""
    updates: list[Update] = field(default_factory=list)


@dataclass
class RunFacts:
    """The process in which an optimizer is."""

    missed: bool = False
    """Whether the rank learned of this check too late, and has nothing to tell."""
    optimizers: int = 1
    cost: Cost = field(default_factory=Cost)
    facts: dict[str, Any] = field(default_factory=dict)
    """Releases and settings, in the first post of rank 0."""
    form: str = ""
    """Posts of one form have the same fields, beside those of the rank alone, so that their tensors
    can be judged together."""


EACH_RANK = {"of_rank": True}
"""The metadata of fields that differ between ranks; many ranks have the same of the others."""


@dataclass
class Post:
    """What a rank saw in a checked step."""

    rank: int = field(metadata=EACH_RANK)
    optimizer: int
    """The number of the optimizer in this process."""
    check: int
    step: int = field(default=0, metadata=EACH_RANK)
    run: RunFacts = field(default_factory=RunFacts, metadata=EACH_RANK)
    parameters: ParameterFacts = field(default_factory=ParameterFacts)
    gradients: GradientFacts = field(default_factory=GradientFacts)
    losses: LossFacts = field(default_factory=LossFacts)
    loop: LoopFacts = field(default_factory=LoopFacts)
    data: RowFacts = field(default_factory=RowFacts, metadata=EACH_RANK)
    outputs: OutputFacts = field(default_factory=OutputFacts, metadata=EACH_RANK)
    states: list[TrainingState] = field(default_factory=list, metadata=EACH_RANK)
    """What was trained at saves and loads since the post before."""
    alarms: list[Alarm] = field(default_factory=list, metadata=EACH_RANK)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """``computed``, ``used``, ``updates``, ``weights``, ``bits``, ``first_bits``, ``losses``;
    ``places``: by the values in ``used``, the parameter, and its first and last position's number;
    ``left``: of ``used``, what was there when the step began;
    ``outside``: whether weights changed since the last step ended; ``roots``: the losses with which
    backwards began; ``targets``: of each micro-batch how many count, and how many there are;
    ``targets_sum``: the bit sum of the targets of each loss, or of the inputs of the models;
    ``passed``: how many times the gradients of other ranks a stage goes on with; ``norms``: of each
    gradient, before all of them were clipped; ``clipped``: by which norm, and to which one;
    ``after``: of each gradient after that;
    ``scaled``: both, if a loss scaler divided the gradients only later, and its scale;
    ``gradient_sizes``, ``sizes_before`` and ``weight_sizes``: the largest absolute value of each
    used gradient, and of each weight before and after the step; ``calls``: three such sizes of each
    call; ``unrounded``: by parameter how many of its values are not those that the optimizer steps,
    rounded; ``states``: bit sums of what has this name."""
