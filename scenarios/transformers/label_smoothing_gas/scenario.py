"""With label smoothing, gradient accumulation multiplies the Trainer's gradients.

With ``label_smoothing_factor=0.1`` and ``gradient_accumulation_steps=4`` each update is 4 times the
right one, with 8 it is 8 times. This affects models whose ``forward`` has ``**kwargs``, such as
LLaMA, in transformers 4.46 to 5.14. The logged loss is too large by the same factor. Without label
smoothing the same releases are right.

Root cause: the Trainer expects these models to return a loss that is divided by the number of
labels in all micro-batches, so it does not divide by the number of micro-batches. But with label
smoothing it computes the loss itself, in ``LabelSmoother``, which takes the mean of one
micro-batch. The fix gives ``num_items_in_batch`` to ``LabelSmoother``.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied
from scenarios.transformers import _labels as labels

oracle = applied.Applied(labels.Step, applied.multiplied, checks=[applied.same_direction])


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's smoothed loss."""
    from scenarios.transformers import _heads as heads

    p = ctx.params
    # Some releases count the first label of a row: another bug.
    rows = heads.dataset(p.head, heads.ROWS * p.steps, ctx.seed, first_label=False)
    settings = {"label_smoothing_factor": p.smoothing}
    with ctx.phase("init"):
        trainer = heads.trainer(ctx, rows, smoothing=p.smoothing, **settings)
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """Labels were smoothed, and each step had several micro-batches."""
    smoothing = records.params.smoothing
    return labels.divided(records) & api.Exercise.of(
        smoothing > 0, f"label_smoothing_factor was {smoothing}", "labels were not smoothed"
    )
