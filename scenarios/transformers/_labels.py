"""Steps of transformers' Trainer over ``_heads``, with the number of labels in each micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bugs import api
from scenarios.common import applied, counted

LENGTH = 8
"""Tokens of a row, each with a label; ``heads.LENGTH``."""


@dataclass(frozen=True)
class Step(applied.Step):
    """What ``heads.trainer`` records of a step."""

    labels: Annotated[list[int], api.many(api.COUNT, least=1)]
    """The number of labels in each of the rank's micro-batches."""


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on all ranks' rows."""
    from scenarios.transformers import _heads as heads

    with ctx.phase("init"):
        trainer = heads.trainer(ctx)
    with ctx.phase("steps"):
        trainer.train()


def divided(records: api.Records) -> api.Exercise:
    """Several ranks or several micro-batches made each step, as many as were requested."""
    return counted.divided(records, [len(step.labels) for step in records.typed(Step)])


def first_counts(step: Step, records: api.Records) -> bool:
    """Each update is the right one times (L - 1) / L."""
    return step.times((LENGTH - 1) / LENGTH)


without_first = applied.Applied(Step, first_counts, checks=[applied.same_direction])
"""The oracle of bugs by which the first label of a row counts, though nothing predicts it."""
