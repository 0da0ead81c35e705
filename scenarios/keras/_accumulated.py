"""keras' SGD with gradient accumulation, beside keras' SGD that gets the mean of the micro-batches.

Both have the same options and get the same gradients: k micro-batches must have the effect of one
batch. A rank records each ``step``, which is an update of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bugs import api

FEATURES = 3
Vector = Sequence[float]


BEFORE = api.Absent(
    "keras<3.0.2",
    "gradient_accumulation_steps came with 3.0.2",
    "https://github.com/keras-team/keras/releases/tag/v3.0.2",
)


@dataclass
class Params(api.Knobs):
    """The parameters that all scenarios with this module have."""

    accumulation: int = api.knob(4, least=1, about="gradient_accumulation_steps of the optimizer")
    steps: int = api.knob(3, least=1, about="of the optimizer")
    lr: float = api.knob(0.1, above=0, about="of SGD")


def plan(at: api.Position) -> api.Plan:
    """The weights and the average of each update, ours and the right ones, and the gradients."""
    vector = api.many(api.NUMBER, FEATURES)
    names = ("before", "weights", "right", "average", "right_average")
    micro = api.many(vector, at.params.accumulation)
    return {
        "step": api.Kind(
            {**dict.fromkeys(names, vector), "micro": micro}, api.each(at.params.steps)
        )
    }


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


def deviation(
    records: api.Records, name: str, subject: str, explains: Callable[[api.Record], bool]
) -> api.Finding | None:
    """A finding if ``weights`` or ``average`` differs from what one batch gives. It is documented
    if ``explains`` holds for each update, and if the weights are right where only the average
    should be wrong."""
    steps = records.of("step")
    odd = [step for step in steps if not equal(step[name], step[_expected(name)])]
    also = name == "average" and any(not equal(step["weights"], step["right"]) for step in steps)
    if not odd and not also:
        return None
    example = (odd or steps)[0]
    return api.Finding(
        f"{subject} after update {example['step']} is {_listed(example[name])}, not "
        f"{_listed(example[_expected(name)])}",
        step=example["step"],
        magnitude=max(math.dist(step[name], step[_expected(name)]) for step in steps),
        unit="between the weights",
        documented=bool(odd) and not also and all(map(explains, steps)),
    )


def _expected(name: str) -> str:
    return "right" if name == "weights" else "right_average"


def _listed(values: Vector) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def accumulated(records: api.Records) -> api.Exercise:
    """Several micro-batches made an update."""
    count = records.params.accumulation
    return api.Exercise.of(count > 1, f"{count} micro-batches made an update", "no accumulation")


def far(name: str, caption: str) -> api.Pictures:
    """A picture of how far ``weights`` or ``average`` is from the right one."""
    return api.lines(
        "The distance to what one batch gives",
        caption,
        lambda step: math.dist(step[name], step[_expected(name)]),
        x="update",
        y="distance",
    )
