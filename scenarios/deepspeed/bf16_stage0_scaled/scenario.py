"""In bf16 without ZeRO, steps are 65536 times too small, and gradients are never set to zero.

The same releases have two faults. First, the optimizer divides each gradient by a loss scale of
65536, but the loss was never multiplied by it: with SGD the weights hardly move. Adam hides this,
as its step hardly depends on the size of a gradient. Second, gradients are not set to zero after a
step, so step n applies the sum of the gradients of steps 1 to n. Nothing fails.

Root cause: for bf16 without ZeRO, newer releases wrap the optimizer as they do for fp16, with
fp16's dynamic loss scale. ``backward`` does not scale the loss, as bf16 needs no scale, but
``step`` divides the gradients by it. And for bf16 without ZeRO the engine does not call
``zero_grad`` after a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, plain_loss

SCALE = 65536
"""fp16's first loss scale in these releases."""

TOLERANCE = 2e-2
"""How far (as a fraction) an applied gradient may be from the right one: bf16 rounds by 2**-9."""


@dataclass(frozen=True)
class Step(applied.Step):
    summed: applied.Single
    """Beside the sum of all gradients so far."""


def divided_or_summed(_: Step, records: api.Records) -> bool:
    """Each step is divided by the scale, or applies the sum of all gradients so far, or both."""
    return any(_faults(records.typed(Step)))


def _faults(steps: Sequence[Step]) -> Iterator[str]:
    """Which of the two faults explain all steps."""
    scale = next((s for s in (1, SCALE) if _times(steps[0], 1 / s)), None)
    summed = scale is not None and all(_times(step.summed, 1 / scale) for step in steps)
    alone = scale is not None and all(_times(step, 1 / scale) for step in steps)
    if scale == SCALE and (alone or summed):
        yield f"each step is divided by {SCALE}"
    if summed and not alone:
        yield "each step applies the sum of its own gradient and those of all steps before"


def _times(step: applied.Beside, ratio: float) -> bool:
    """Whether a step applied ``ratio`` times the gradient, within the rounding of bf16."""
    norm = api.near(step.applied, ratio * step.gradient, share=TOLERANCE)
    return norm and api.near(step.ratio, ratio, share=TOLERANCE)


def loss_unlike(records: api.Records) -> dict[str, bool]:
    """The loss is right for the weights, though they hardly move."""
    # The mean of the ranks' parts is compared.
    unlike = any(plain_loss.loss_wrong(records, parts=True, tolerance=TOLERANCE))
    return {"the loss is not that of plain torch with the same weights": unlike}


@dataclass(frozen=True)
class Rounded(applied.Applied[Step]):
    """Steps and losses are rounded to bf16."""

    def is_right(self, step: Step, records: api.Records) -> bool:
        return _times(step, 1)

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        yield from _faults(records.typed(Step))
        yield from map(str, wrong_steps)

    def odd(self, records: api.Records) -> list[str]:
        return [name for name, unlike in loss_unlike(records).items() if unlike]


oracle = Rounded(
    Step, divided_or_summed, parts=lambda at: 1, replicas=True, loss="parts", checks=[loss_unlike]
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD; compare each step of the fp32 masters with plain torch's."""
    import torch

    from scenarios.common import linear, plain_torch
    from scenarios.deepspeed import _exact as exact
    from scenarios.deepspeed import _masters as masters
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    torch.manual_seed(ctx.seed)
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            regression.sgd(p.lr),
            exact.linear_map(),
            train_micro_batch_size_per_gpu=p.batch,
            zero_optimization={"stage": p.zero_stage},
            zero_allow_untested_optimizer=True,
            bf16={"enabled": p.precision == "bf16"},
        )
    data = exact.batches(ctx, ctx.world_size * p.batch)
    loss_of = plain_torch.loss_of(engine.module, linear.loss)
    total: dict[str, torch.Tensor] = {}
    for step, rows in zip(api.each(p.steps), data, strict=False):
        weights = plain_torch.copied(engine.module, torch.float64)
        plain = plain_torch.differentiate(loss_of, weights, [rows])
        total = {name: total.get(name, 0) + g for name, g in plain.micro[0].items()}
        before = masters.full(engine)
        loss = regression.step(ctx, engine, rows)
        after = masters.full(engine)
        summed = plain_torch.Plain(plain.losses, [total])
        ctx.record(
            "step",
            step,
            loss=loss,
            summed=plain_torch.facts(summed, before, after, p.lr),
            **plain_torch.facts(plain, before, after, p.lr),
        )


def exercised(records: api.Records) -> api.Exercise:
    """The training was in bf16, without ZeRO."""
    precision, stage = records.params.precision, records.params.zero_stage
    text = f"{len(records.of('step', 0))} steps in {precision} with ZeRO stage {stage}"
    return api.Exercise.of(precision == "bf16" and stage == 0, text)
