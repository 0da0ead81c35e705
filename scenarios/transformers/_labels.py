"""Steps of transformers' Trainer over ``_heads``, with the number of labels in each micro-batch."""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied

LENGTH = 8
"""Tokens of a row, each with a label; ``heads.LENGTH``."""


def facts(at: api.Position) -> api.Facts:
    """What ``heads.trainer`` records of a step besides what it applied."""
    return {"labels": api.many(api.COUNT, least=1)}


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on all ranks' rows."""
    from scenarios.transformers import _heads as heads

    with ctx.phase("init"):
        trainer = heads.trainer(ctx)
    with ctx.phase("steps"):
        trainer.train()


def divided(records: api.Records) -> api.Exercise:
    """Several ranks or several micro-batches made each step, as many as were requested."""
    return applied.divided(records, lambda step: len(step["labels"]))


def first_counts(step: api.Record, records: api.Records) -> bool:
    """Each update is the right one times (L - 1) / L."""
    return applied.times(step, (LENGTH - 1) / LENGTH)


def divided_twice(step: api.Record, records: api.Records) -> bool:
    """The symptom of ``trainer_gas_twice``."""
    return applied.times(step, 1 / records.params.accumulation)


def never_divided(step: api.Record, records: api.Records) -> bool:
    """The symptom of ``trainer_gas_never``."""
    return applied.times(step, records.params.accumulation)


without_first = applied.Applied(first_counts, facts=facts, checks=[applied.same_direction])
"""The oracle of bugs by which the first label of a row counts, though nothing predicts it."""
