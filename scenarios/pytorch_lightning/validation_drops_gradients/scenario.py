"""A validation inside an accumulation window erases the gradients that were gathered before it.

With ``accumulate_grad_batches=4`` and a validation after each 5 batches, up to three of the four
micro-batches of a step are read, computed, and dropped: the update contains only the micro-batches
after the validation, and their weight does not increase. This affects users whose
``val_check_interval`` does not fall on the end of a window, for example if it is a fraction of an
epoch. All ranks drop the same micro-batches, and the losses are right.

Root cause: to save memory, Lightning's evaluation loop sets the model's gradients to None before it
validates. It does not ask whether the optimizer has used them. The fix clears them only where the
training loop is not accumulating.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, usual_checks
from scenarios.pytorch_lightning._companions import OLD_TORCHMETRICS


@dataclass
class Params(api.Knobs):
    accumulation: int = api.knob(4, least=1, most=8, about="accumulate_grad_batches")
    validate_every: int = api.knob(5, least=1, unit="batches", about="val_check_interval")
    own_zero_grad: bool = api.knob(False, about="whether the module's own zero_grad does nothing")
    batch: int = api.knob(8, least=1, unit="rows", about="size of a rank's micro-batch")
    steps: int = api.knob(5, least=1, about="of the optimizer")
    lr: float = api.knob(0.1, above=0, about="of SGD")


SCENARIO = api.Scenario(
    report=(
        "Should the model's grads be cleared before entering the validation loop?",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/18713",
    ),
    fix="https://github.com/Lightning-AI/pytorch-lightning/pull/18710",
    symptom="the validation loop erases gradients when validation happens in the middle of a "
    "gradient accumulation phase",
    trigger="accumulate_grad_batches above 1, and a validation inside a window",
    remedy="use a val_check_interval that is a multiple of accumulate_grad_batches",
    pins={"pytorch-lightning": "2.0.9"},
    harm="loses data",
    visibility="silent",
    settings={
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("val_check_interval is not a multiple of accumulate_grad_batches"),
    },
    seen={
        "lightning.pytorch.trainer.trainer.Trainer or "
        "pytorch_lightning.trainer.trainer.Trainer": api.NEEDED
    },
    files=("pytorch_lightning/loops/evaluation_loop.py",),
    releases="pytorch-lightning>=1.6",  # the first with DDPStrategy
    companions=(OLD_TORCHMETRICS,),
    present=(
        api.Present(
            "pytorch-lightning>=1.5,<1.6",
            "the evaluation loop calls zero_grad() before it validates",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.5.10/pytorch_lightning/loops/dataloader/evaluation_loop.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("2.1.0"),
        "control": api.control(
            "2.0.9 with validations at the ends of windows only", params={"validate_every": 4}
        ),
        "remedy": api.expect_clean(
            about="2.0.9 with a module whose zero_grad does nothing", params={"own_zero_grad": True}
        ),
    },
)


@dataclass(frozen=True)
class Step(applied.Step):
    before_validation: api.Size
    """Micro-batches that came before a validation."""


def only_after(step: Step, _: api.Records) -> bool:
    """Each step applied the gradients of the micro-batches after its last validation, each with its
    right weight, and nothing of those before. The losses are plain torch's."""
    return step.has([int(n >= step.before_validation) for n in range(len(step.micro))])


oracle = applied.Applied(
    Step,
    only_after,
    parts=lambda at: at.params.accumulation,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Lightning; compare each step with plain torch's gradients."""
    from scenarios.pytorch_lightning.validation_drops_gradients import training

    training.fit(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """A validation ran between two micro-batches of a step."""
    hit = {step.step for step in records.typed(Step) if step.before_validation}
    text = ", ".join(map(str, sorted(hit)))
    return api.Exercise.of(
        bool(hit), f"a validation ran inside steps {text}", "no validation ran inside a step"
    )
