"""keras' SGD with gradient accumulation, beside keras' SGD that gets the mean of the micro-batches.

Both have the same options and get the same gradients: k micro-batches must have the effect of one
batch. A rank records each ``step``, which is an update of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from harness.bugs import api
from scenarios.common.gradient import Gradient

FEATURES = 3
Vector = Annotated[Sequence[float], api.many(api.NUMBER, FEATURES)]


@dataclass(frozen=True)
class Step(api.Entry):
    """An update: the weights and their average, and what they should be."""

    before: Vector
    weights: Vector
    right: Vector
    average: Vector
    right_average: Vector
    micro: Sequence[Vector]
    """The gradients of the micro-batches."""


def train(ctx: api.Context, **options: Any) -> None:
    """Update a weight with both optimizers, which have these ``options``."""
    import keras
    import torch

    p = ctx.params
    several = {"gradient_accumulation_steps": p.accumulation} if p.accumulation > 1 else {}
    generator = torch.Generator().manual_seed(ctx.seed)
    gradients = 3 * torch.randn(p.steps, p.accumulation, FEATURES, generator=generator)
    with keras.device(str(ctx.device)):
        ours = keras.optimizers.SGD(p.lr, **several, **options)
        whole = keras.optimizers.SGD(p.lr, **options)
        weight, reference = (keras.Variable(keras.ops.ones(FEATURES)) for _ in range(2))
        for step, micro in enumerate(gradients, 1):
            before = _numbers(weight)
            for gradient in micro:
                ours.apply([gradient.to(ctx.device)], [weight])
            whole.apply([micro.mean(0).to(ctx.device)], [reference])
            ctx.record(
                "step",
                step,
                before=before,
                weights=_numbers(weight),
                right=_numbers(reference),
                average=_average(ours, weight),
                right_average=_average(whole, reference),
                micro=micro.tolist(),
            )


def _numbers(variable: Any) -> list[float]:
    return [float(value) for value in variable.numpy()]


def _average(optimizer: Any, weight: Any) -> list[float]:
    """What the weight would become at the end of a training: with EMA its average."""
    backup = weight.numpy().copy()
    optimizer.finalize_variable_values([weight])
    average = _numbers(weight)
    weight.assign(backup)
    return average


def equal(vector: Vector, expected: Vector) -> bool:
    """Whether two vectors are equal, within what fp32 rounds."""
    return math.dist(vector, expected) <= 1e-5 * (1 + math.hypot(*expected))


def mean(micro: Sequence[Vector]) -> list[float]:
    """The mean of the micro-batches' gradients."""
    return [math.fsum(values) / len(micro) for values in zip(*micro, strict=True)]


@dataclass(frozen=True)
class Accumulated(Gradient[Step]):
    """The oracle of scenarios whose updates are not those of one batch."""

    documented: Callable[[Step, api.Records], bool]
    name: Literal["weights", "average"]
    """What is wrong. If it is the average, the weights are right."""
    checks: Sequence[api.Check]
    picture: api.Pictures
    step = Step
    unit = "between the weights"

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each update."""
        micro = api.many(api.many(api.NUMBER, FEATURES), at.params.accumulation)
        return {"step": api.Kind(Step.shapes(micro=micro), api.each(at.params.steps))}

    def pair(self, step: Step) -> tuple[Vector, Vector]:
        """The weights or the average, and what they should be."""
        if self.name == "weights":
            return step.weights, step.right
        return step.average, step.right_average

    def is_right(self, step: Step, records: api.Records) -> bool:
        return equal(*self.pair(step))

    def error(self, step: Step, records: api.Records) -> float:
        return math.dist(*self.pair(step))

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        vectors = (", ".join(f"{value:.4g}" for value in v) for v in self.pair(wrong_steps[0]))
        subject = "the weight" if self.name == "weights" else "the average"
        yield f"{subject} after update {wrong_steps[0].step} is {', not '.join(vectors)}"

    def detect(self, records: api.Records) -> api.Finding | None:
        finding = super().detect(records)
        return finding and replace(finding, ranks=())  # there is one rank

    def odd(self, records: api.Records) -> list[str]:
        weights_are_wrong = self.name == "average" and weights_wrong(records)
        return ["the weights are not those of an update with the mean"] if weights_are_wrong else []


def weights_wrong(records: api.Records) -> bool:
    """Whether an update gave other weights than one batch."""
    return any(not equal(step.weights, step.right) for step in records.typed(Step))


def accumulated(records: api.Records) -> api.Exercise:
    """Several micro-batches made an update."""
    count = records.params.accumulation
    return api.Exercise.of(count > 1, f"{count} micro-batches made an update", "no accumulation")


def far(name: Literal["weights", "average"], caption: str) -> api.Pictures:
    """A picture of how far ``weights`` or ``average`` is from the right one."""
    expected = "right" if name == "weights" else "right_average"
    return api.lines(
        "The distance to what one batch gives",
        caption,
        lambda step: math.dist(step[name], step[expected]),
        x="update",
        y="distance",
    )
