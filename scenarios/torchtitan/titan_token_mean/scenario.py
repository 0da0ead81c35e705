"""torchtitan weighs a token of a micro-batch with few labels more than others.

This affected trainings with torchtitan's Trainer on data with ignored labels, such as prompts or
padding, with gradient accumulation. Each update is the mean of the micro-batches' means, not the
mean over all labels. A micro-batch with few labels counts as much as one with many, so the update
depends on how a batch is cut. The upstream report names ranks with different numbers of labels,
too.

Root cause: the loss function returns the mean over the labels of a micro-batch, and the trainer
divides it by the number of micro-batches. Since 0.2.2 it returns the sum, and the trainer divides
it by the labels of all micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import features

LENGTH = 16
LABELS = {"unequal": ((16, 16), (3, 5)), "equal": ((10, 10), (10, 10))}
"""For each micro-batch, the number of labels of each row."""


@dataclass(frozen=True)
class Means(features.Feature):
    """The oracle: the documented fault is the mean of the micro-batches' means."""

    reason: str = "exactly that follows if each micro-batch has its own mean"
    checks: Sequence[api.Check] = ()


oracle = Means()


def run(ctx: api.Context) -> None:
    """Train torchtitan's small LLaMA with its Trainer; the whole batch in one pass is right."""
    from scenarios.torchtitan import _trainer

    p = ctx.params
    labels = LABELS[p.labels]
    parts = labels if p.accumulate else [[count for part in labels for count in part]]
    _trainer.train(ctx, LENGTH, parts, "means")


def exercised(records: api.Records) -> api.Exercise:
    """Micro-batches with different numbers of labels were accumulated."""
    p = records.params
    counts = [sum(part) for part in LABELS[p.labels]]
    return api.Exercise.needs(p.accumulate, "there was one micro-batch") & api.Exercise.of(
        len(set(counts)) > 1, f"micro-batches of {counts[0]} and {counts[1]} labels"
    )
