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

COUNTED = (1, 2, 6, 7, 3, 5, 4, 2)
"""How many labels of each of the 8 rows of a step count; the first label never does."""


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
