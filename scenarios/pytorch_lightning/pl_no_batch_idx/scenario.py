"""A training_step without batch_idx trains on the last micro-batch of each window alone.

Lightning lets a module leave out the second parameter of ``training_step``. With
``accumulate_grad_batches=4`` such a module then trains on one of four micro-batches: the gradients
of the others are computed and erased, so the update is about a quarter of the right one. The number
of steps, the losses and the learning rate are right. This affects every user who left the parameter
out and accumulates; with the parameter, all is right.

Root cause: the training loop takes the number of the batch from the arguments of ``training_step``.
If the step does not have it, the loop takes 0. It erases the gradients where that number is a
multiple of ``accumulate_grad_batches``, so it erases them before each micro-batch. The fix hands
the number to the optimization in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, usual_checks


@dataclass
class Params(api.Knobs):
    accumulation: int = api.knob(4, least=1, most=8, about="accumulate_grad_batches")
    batch_idx: bool = api.knob(False, about="whether training_step takes the batch's number")
    batch: int = api.knob(8, least=1, unit="rows", about="size of a rank's micro-batch")
    steps: int = api.knob(3, least=1, about="of the optimizer")
    lr: float = api.knob(0.1, above=0, about="of SGD")


SCENARIO = api.Scenario(
    report=(
        "Fix gradient accumulation when training_step does not take batch_idx",
        "https://github.com/Lightning-AI/pytorch-lightning/pull/18619",
    ),
    fix="https://github.com/Lightning-AI/pytorch-lightning/pull/18619",
    symptom="the gradients are zeroed at each micro-batch if training_step has no batch_idx",
    trigger="a training_step without batch_idx, and accumulate_grad_batches above 1",
    remedy="give training_step the parameter batch_idx",
    pins={"pytorch-lightning": "2.0.9"},
    harm="loses data",
    visibility="silent",
    settings={
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("training_step does not take batch_idx"),
    },
    files=("pytorch_lightning/loops/training_epoch_loop.py",),
    releases="pytorch-lightning>=2",  # older ones have the loops in other files
    absent=(
        api.Absent(
            "pytorch-lightning>=1.5,<1.7",
            "the loop does not ask the arguments of training_step",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.6.5/pytorch_lightning/loops/optimization/optimizer_loop.py",
        ),
    ),
    present=(
        api.Present(
            "pytorch-lightning>=1.7,<2",
            "the loop takes 0 if training_step has no number",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/pytorch_lightning/loops/optimization/optimizer_loop.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("2.1.0"),
        "control": api.control("2.0.9 with batch_idx in training_step", params={"batch_idx": True}),
        "one": api.control("2.0.9 without accumulation", params={"accumulation": 1}),
    },
)


oracle = applied.Applied(
    applied.Step,
    applied.last_only,
    parts=lambda at: at.params.accumulation,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Lightning; compare each step with plain torch's gradients."""
    from typing import Any

    from scenarios.pytorch_lightning import _accumulating as accumulating

    class Without(accumulating.Map):
        count = 0

        def training_step(self, rows: Any) -> Any:  # type: ignore[override]
            self.count += 1
            return self.trained(rows, self.count - 1)

    accumulating.fit(ctx, accumulating.Map if ctx.params.batch_idx else Without)


def exercised(records: api.Records) -> api.Exercise:
    """The step accumulated, and did not take the number of the batch."""
    p = records.params
    text = f"{p.accumulation} micro-batches; training_step takes batch_idx: {p.batch_idx}"
    return api.Exercise.of(p.accumulation > 1 and not p.batch_idx, text)
