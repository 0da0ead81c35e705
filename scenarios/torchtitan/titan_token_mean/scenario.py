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


@dataclass
class Params(api.Knobs):
    labels: str = api.knob("unequal", choices=tuple(LABELS), about="in number, of 2 micro-batches")
    accumulate: bool = api.knob(True, about="the 2 micro-batches, instead of one of both")
    steps: int = api.knob(3, least=1, about="of training")


SCENARIO = api.Scenario(
    report=(
        "Fix loss computation by handling valid token imbalance in train loop",
        "https://github.com/pytorch/torchtitan/pull/2206",
        "https://github.com/pytorch/torchtitan/issues/1842",
    ),
    fix="https://github.com/pytorch/torchtitan/pull/2206",
    symptom="per-rank and per-microbatch normalization causes incorrect gradient weighting when "
    "ranks or microbatches have different numbers of valid tokens",
    trigger="the Trainer with gradient accumulation, and micro-batches with different numbers of "
    "labels",
    pins={"torchtitan": "0.2.1"},
    harm="ruins training",
    visibility="silent",
    settings={
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("micro-batches have different numbers of labels"),
    },
    seen={"torchtitan.train.Trainer": api.NEEDED},
    files=("torchtitan/components/loss.py",),
    releases="torchtitan>=0.2,<0.3",
    absent=(
        api.Absent(
            "torchtitan>=0.2.2",
            "the loss is divided by all labels of a step",
            "https://github.com/pytorch/torchtitan/pull/2206",
        ),
    ),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.2.2"),
        "control": api.control(
            "0.2.1 with equally many labels in each micro-batch", params={"labels": "equal"}
        ),
        "one_batch": api.control("0.2.1 without accumulation", params={"accumulate": False}),
    },
)


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
