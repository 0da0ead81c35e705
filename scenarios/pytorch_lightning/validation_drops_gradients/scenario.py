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
