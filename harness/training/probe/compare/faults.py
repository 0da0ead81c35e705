"""A relation that does not hold: the mistake that its ratio shows, the words of its message, and
the place where the layout parts from the reference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.bugs.api.numbers import finite, near
from harness.detectors.arithmetic import Projection
from harness.system.text import StrEnum

NEAR = 2e-3
"""How far (as a fraction) a ratio may be from a mistake's."""

SMALL = 0.02
"""Below this ratio the tolerance is absolute: 0 has none of its own."""

MISTAKES = {
    "0": ("nothing at all", lambda world, k: 0.0),
    "-1": ("the sign is turned", lambda world, k: -1.0),
    "k": ("never divided by the accumulation steps", lambda world, k: float(k)),
    "1/k": ("divided by the accumulation steps twice", lambda world, k: 1 / k),
    "ranks": ("summed over the ranks, not averaged", lambda world, k: float(world)),
    "1/ranks": ("divided by the number of ranks twice", lambda world, k: 1 / world),
    "ranks*k": (
        "divided neither by the ranks nor by the accumulation steps",
        lambda world, k: float(world * k),
    ),
    "1/(ranks*k)": (
        "divided by both the ranks and the accumulation steps once too often",
        lambda world, k: 1 / (world * k),
    ),
}
"""By the ratio in terms of ranks and micro-batches, what it means, and its value."""


def term(ratio: float, world: int, k: int) -> str:
    """The ratio in terms of ranks and micro-batches, such as ``1/k``; empty if no term fits."""
    values = {name: value(world, k) for name, (_, value) in MISTAKES.items()}
    close = (
        name
        for name, value in values.items()
        if value != 1 and near(ratio, value, within=NEAR * max(abs(value), SMALL))
    )
    return next(close, "")


def meaning(ratio: float, world: int, k: int) -> str:
    """The mistake with this ratio; empty if we know none."""
    mistake = term(ratio, world, k)
    return MISTAKES[mistake][0] if mistake else ""


class Stage(StrEnum):
    """A part of a step, or of a run, in which a layout may part from the reference."""

    WEIGHTS = "weights"
    LOADER = "loader"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    ACCUMULATION = "accumulation"
    REDUCTION = "reduction"
    CLIPPING = "clipping"
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


SENTENCES = {
    Stage.WEIGHTS: "the weights that the ranks begin with",
    Stage.LOADER: "the loader, or its sampler",
    Stage.LOSS: "the loss, or the factor that it has before the backward",
    Stage.ACCUMULATION: "the accumulation of the micro-batches' gradients",
    Stage.REDUCTION: "the reduction of the gradients over the ranks",
    Stage.CLIPPING: "the clipping of the gradients",
    Stage.OPTIMIZER: "the step of the optimizer",
    Stage.SCHEDULE: "the schedule of the learning rate",
    Stage.CHECKPOINT: "the checkpoint: what is saved, or what is loaded",
    Stage.EVALUATION: "the evaluation",
}
"""What a report says of a stage."""


@dataclass(frozen=True)
class Place:
    """The first place where a layout parts from the reference."""

    stage: Stage | None = None
    """None if it is not determined."""
    text: str = ""
    """The place in words; without one, why it is not determined."""
    module: str | None = None
    """Its name in the model; empty for the model itself."""
    kind: str | None = None
    """Its class."""
    file: str | None = None
    line: int | None = None
    layout: str = ""
    """The name of the layout."""

    @property
    def sentence(self) -> str:
        return self.text if self.stage else f"not determined, because {self.text}"


def of_stage(stage: Stage, remark: str = "") -> Place:
    """A stage as a place. ``remark`` follows its name."""
    return Place(stage, SENTENCES[stage] + remark)


def undetermined(why: str) -> Place:
    return Place(text=why)


class Relation(NamedTuple):
    """What it means if a relation does not hold."""

    meaning: str
    stage: Stage | None = None
    """Where a layout parts from the reference; None if many stages may be the reason."""
    is_separate: bool = False
    """Whether it does not follow from another broken relation: then it has a line of its own."""


BROKEN_RELATIONS = {
    "weights": Relation("it begins with other weights", Stage.WEIGHTS),
    "weights between steps": Relation("its weights change outside of optimizer.step"),
    "optimizer's parameters": Relation(
        "its optimizer does not have what it trains", Stage.OPTIMIZER
    ),
    "optimizer": Relation("the optimizer's state is lost", Stage.CHECKPOINT, True),
    "average": Relation("an average of the weights is another one", Stage.CHECKPOINT),
    "samples": Relation("it trains on other samples", Stage.LOADER, True),
    "stale gradients": Relation("gradients of the step before are left", Stage.ACCUMULATION),
    "gradient": Relation("it has another gradient"),
    "gradient with dropout": Relation("it has another gradient with dropout"),
    "clipped gradient": Relation("clipping leaves another gradient", Stage.CLIPPING),
    "loss": Relation("it has another loss"),
    "learning rate": Relation("it has another learning rate", Stage.SCHEDULE, True),
    "update": Relation("its steps go elsewhere", Stage.OPTIMIZER),
    "steps": Relation("it takes another number of steps", Stage.LOADER),
    "order of samples": Relation("it draws the samples in the same order", Stage.LOADER),
    "evaluation": Relation("an evaluation reports another loss", Stage.EVALUATION, True),
    "checkpoint": Relation("it saves other weights", Stage.CHECKPOINT, True),
    "schedule": Relation(
        "the schedule of the learning rate has another length", Stage.SCHEDULE, True
    ),
}


@dataclass(frozen=True)
class Broken:
    """A relation that does not hold at a step."""

    relation: str
    text: str
    ratio: float | None = None
    """How much of the reference there is, where that is one number."""
    meaning: str = ""
    """What the ratio says."""
    parameters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    details: tuple[str, ...] = field(default=())


def in_words(ratio: float, meaning: str, of: str = "") -> str:
    """A ratio in words, with what it is a multiple ``of``, and with its meaning."""
    factor = f"{ratio:.4g}"
    if factor == "1" and ratio != 1:  # how far it is from 1 is what matters
        factor = f"1 {'+' if ratio > 1 else '-'} {abs(ratio - 1):.2g}"
    return f"{factor} times{of}" + (f" ({meaning})" if meaning else "")


def in_directions(part: Projection, meaning: str = "") -> str:
    """A ratio in words, with how much has another direction."""
    if part.is_factor:
        return in_words(part.ratio, meaning)
    if not finite(part.ratio):
        return "not finite, unlike"
    return f"{part.ratio:.4g} times (and {part.aside:.0%} of it in another direction)"


def several_ranks(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
