"""With gradient accumulation, the Trainer weighs a token of a short micro-batch more than others.

Until transformers 4.45 each update is the mean of the micro-batches' means, not the mean over all
tokens. A micro-batch with few labels counts as much as one with many: here a token counts 0.69 to
1.6 times what it should, and up to 0.3 of the gradient has a wrong direction. So the update depends
on how a batch is cut into micro-batches. This affects everyone who trains on texts of different
lengths with accumulation.

Root cause: the model returns the mean loss of its micro-batch, and accelerate divides it by the
number of micro-batches. The fix counts the labels of all micro-batches before the step and gives
the number to the model, which divides the sum of its losses by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied
from scenarios.transformers import _labels as labels
from scenarios.transformers._history import OLD_ACCELERATE

COUNTED = (1, 2, 6, 7, 3, 5, 4, 2)
"""How many labels of each of the 8 rows of a step count; the first label never does."""


@dataclass
class Params(api.Knobs):
    head: str = api.knob("llama", choices=("llama", "gpt2"), about="the model that is trained")
    accumulation: int = api.knob(
        4, choices=(1, 2, 4), about="gradient_accumulation_steps: parts of the 8 rows of a step"
    )
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of SGD")
    unequal: bool = api.knob(True, about="whether the rows have different numbers of labels")


SCENARIO = api.Scenario(
    report=(
        "Fix Gradient Accumulation issue",
        "https://github.com/huggingface/transformers/pull/34191",
    ),
    fix="https://github.com/huggingface/transformers/pull/34191",
    symptom="with gradient accumulation the gradient is not that of the same rows in one batch",
    trigger="the Trainer with gradient_accumulation_steps above 1, and micro-batches with "
    "different numbers of labels",
    pins={"transformers": "4.45.2", "accelerate": "1.13.0"},
    companions=(OLD_ACCELERATE,),
    decided_by=("transformers",),
    named_by=("entangle: 6",),
    harm="ruins training",
    visibility="silent",
    settings={
        "trainer": True,
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("micro-batches have different numbers of labels"),
    },
    files=("transformers/trainer.py",),
    ranks=1,
    present=(
        api.Present(
            "transformers>=4.20.1,<4.28",
            "the mean loss is divided by the number of micro-batches",
            "https://github.com/huggingface/transformers/blob/v4.26.1/src/transformers/trainer.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("4.46.3"),
        "control": api.control(
            "4.45.2 with equally many labels in each row", params={"unequal": False}
        ),
        "one_batch": api.control("4.45.2 without accumulation", params={"accumulation": 1}),
    },
)


def of_means(step: labels.Step, _: api.Records) -> bool:
    """Each update is the mean of the micro-batches' means."""
    counts = step.labels
    # The shares of the micro-batches in a mean of their means: right is 1 each.
    expected = [math.fsum(counts) / (len(counts) * count) for count in counts]
    return all(api.near(a, b, share=5e-3) for a, b in zip(step.micro, expected, strict=True))


def unused(records: api.Records) -> dict[str, bool]:
    """Each micro-batch was used, so a look at which rows came does not show the bug."""
    left_out = any(share <= 0 for step in records.typed(labels.Step) for share in step.micro)
    return {"a micro-batch was left out": left_out}


@dataclass(frozen=True)
class Turned(applied.Applied[labels.Step]):
    """Steps are as wrong as their direction is."""

    unit = "of the applied gradient has another direction"

    def error(self, step: labels.Step, records: api.Records) -> float:
        return step.off


oracle = Turned(
    labels.Step,
    of_means,
    words=applied.of_each,
    instead={"trainer_gas_twice": applied.divided_again},
    checks=[unused],
)


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with the mean over all tokens."""
    from scenarios.transformers import _heads as heads
    from scenarios.transformers._trainer_sgd import IGNORED

    p = ctx.params
    # Some releases count the first label of a row: another bug.
    rows = heads.dataset(p.head, heads.ROWS * p.steps, ctx.seed, first_label=False)
    for number, row in enumerate(rows) if p.unequal else ():
        row["labels"][1 + COUNTED[number % len(COUNTED)] :] = IGNORED
    with ctx.phase("init"):
        trainer = heads.trainer(ctx, rows)
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """The micro-batches of a step had different numbers of labels."""
    uneven = [step for step in records.typed(labels.Step) if len(set(step.labels)) > 1]
    counts = ", ".join(map(str, uneven[0].labels)) if uneven else ""
    return api.Exercise.of(
        bool(uneven),
        f"{len(uneven)} steps with micro-batches of {counts} labels",
        "the micro-batches of a step had equally many labels",
    )
