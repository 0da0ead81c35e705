"""Did each stage of DeepSpeed's pipeline apply plain torch's gradient of its layers?

A rank records ``step`` with what ``layers.Stage`` returns, and the pipeline's ``loss``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from harness.bugs import api
from scenarios.common import applied, plain_loss


@dataclass(frozen=True)
class Step(applied.Step):
    stage: api.Count
    stages: api.Count


_by_stage = partial(applied.ratios, by="stage")


def of_all_stages(wrong_steps: Sequence[Step], records: api.Records) -> Iterable[str]:
    """What all stages applied in the first wrong step."""
    return (str(step) for step in records.typed(Step) if step.step == wrong_steps[0].step)


@dataclass(frozen=True)
class Stages(applied.Applied[Step]):
    """The oracle of scenarios in which a stage of a pipeline applies another gradient."""

    loss: Literal["", "whole", "parts"] = "whole"
    checks: tuple[api.Check, ...] = (plain_loss.loss_unlike_reference, applied.same_direction)
    picture: api.Pictures = _by_stage

    def shapes(self, at: api.Position) -> api.Facts:
        """The shapes of the facts of a step: only the losses are the same on all ranks."""
        losses = {"loss": api.alike(api.NUMBER), "reference_loss": api.alike(api.NUMBER)}
        stage = {"stages": api.exactly(at.world_size), "stage": api.exactly(at.rank)}
        return {**super().shapes(at), **stage, **losses}


def run(ctx: api.Context) -> None:
    """Train a pipeline with SGD; compare each stage's step with plain torch's gradient."""
    from scenarios.deepspeed import _layers as layers
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    with ctx.phase("init"):
        engine = layers.pipeline(
            ctx,
            regression.sgd(p.lr),
            train_micro_batch_size_per_gpu=p.batch,
            gradient_accumulation_steps=p.micro_batches,
            zero_optimization={"stage": p.zero_stage},
        )
    data, stage = layers.rows(ctx, p.micro_batches, p.batch), layers.Stage(ctx, engine)
    for step in api.each(p.steps):
        stage.begin(data)
        loss = float(engine.train_batch(iter(data)))
        ctx.record("step", step, loss=loss, **stage.facts(p.lr))


def count(records: api.Records) -> int:
    """The number of stages."""
    return max((step.stages for step in records.typed(Step)), default=0)


def never_divided(step: Step, records: api.Records) -> bool:
    """All stages applied GAS times their gradient. The loss is that of plain torch."""
    return step.times(records.params.micro_batches)


def divided_again(step: Step, records: api.Records) -> bool:
    """The last stage applied its gradient, and each stage before it divided by GAS once more. The
    loss is that of plain torch."""
    behind = step.stage + 1 - step.stages
    return step.times(float(records.params.micro_batches**behind))
