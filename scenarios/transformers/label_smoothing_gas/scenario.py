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

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied
from scenarios.transformers import _labels as labels
from scenarios.transformers._history import BEFORE_COUNTING, OLD_ACCELERATE


@dataclass
class Params(api.Knobs):
    head: str = api.knob("llama", choices=("llama",), about="the model that is trained")
    accumulation: int = api.knob(
        4, choices=(1, 2, 4, 8), about="gradient_accumulation_steps: parts of the 8 rows of a step"
    )
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of SGD")
    smoothing: float = api.knob(0.1, least=0, most=0.5, about="label_smoothing_factor")


SCENARIO = api.Scenario(
    report=(
        "LabelSmoother ignores num_items_in_batch, inflating gradients by "
        "~gradient_accumulation_steps with label smoothing",
        "https://github.com/huggingface/transformers/issues/46731",
    ),
    fix="https://github.com/huggingface/transformers/pull/47261",
    symptom="gradients grow with gradient_accumulation_steps if label_smoothing_factor is above 0",
    trigger="the Trainer with label_smoothing_factor above 0 and gradient_accumulation_steps above "
    "1, and a model whose forward has **kwargs",
    remedy="give the Trainer a compute_loss_func with label smoothing",
    pins={"transformers": "5.14.1", "accelerate": "1.13.0"},
    companions=(OLD_ACCELERATE,),
    decided_by=("transformers",),
    absent=(BEFORE_COUNTING,),
    harm="ruins training",
    visibility="visible in the loss",
    settings={
        "trainer": True,
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("label_smoothing_factor is above 0"),
    },
    seen={
        "transformers.trainer.Trainer": {
            "args.label_smoothing_factor": api.above(0),
            "model_accepts_loss_kwargs": True,
        }
    },
    files=("transformers/trainer.py", "transformers/trainer_pt_utils.py"),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.15.0"),
        "control": api.control("5.14.1 without label smoothing", params={"smoothing": 0.0}),
        "one_batch": api.control("5.14.1 without accumulation", params={"accumulation": 1}),
        "eight": api.expect_symptom(
            about="5.14.1, eight micro-batches", params={"accumulation": 8}
        ),
    },
)


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
