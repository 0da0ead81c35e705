"""The first step of a warmup uses the optimizer's own learning rate instead of the schedule's.

DeepSpeed steps the schedule after the optimizer, and up to 0.15.2 its warmup schedules set no rate
when they are made. So the first step uses the rate that the optimizer was configured with, which is
usually the highest, or its default of 1e-3. The warmup starts with the second step: the rates are
0.1, 0, 0.025; the right ones are 0, 0, 0.025.

A warmup is there to prevent such a large step, which may ruin the model. Nothing shows it: after a
step the engine reports the rate of the next step, so no log has the rate of the first one.

Root cause: unlike LRRangeTest and OneCycle, WarmupLR (and with it WarmupDecayLR) and WarmupCosineLR
do not set the rates of the optimizer's groups in ``__init__``. The fix sets them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from harness.bugs import api
from scenarios.common import applied, plain_loss, usual_checks
from scenarios.deepspeed import _schedule as schedule

SCHEDULE = "WarmupLR"
"""The name of DeepSpeed's class, and its name in DeepSpeed's config."""


def own_rate(params: Any) -> float:
    """The rate that the optimizer is configured with."""
    return float(getattr(params, params.own))


def own_first(deviations: Sequence[schedule.Deviation], records: api.Records) -> bool:
    """The first step used the optimizer's own rate, and all others the schedule's. Each step moved
    the weights by its rate times the gradient, and the next step's rate was logged."""
    return all(
        deviation.step == 1 and deviation.rate == own_rate(records.params)
        for deviation in deviations
    )


def warmup(p: Any, step: int) -> float:
    """WarmupLR's rate: the lowest in its own first step, which is the optimizer's second."""
    return p.low + (p.high - p.low) * min(max(step - 2, 0) / p.warmup, 1.0)


def odd(records: api.Records) -> Iterator[str]:
    """Other faults: of the groups, the movements, the logged rates and the losses."""
    yield from schedule.groups_wrong(records)
    yield from schedule.not_moved(records)
    yield from schedule.logged_wrong(records, partial(warmup, records.params))
    yield from plain_loss.loss_wrong(records, parts=True)


def logged_unlike(records: api.Records) -> dict[str, bool]:
    """The rate that the engine reports after a step is that of the next one."""
    beyond = any(schedule.logged_wrong(records, partial(warmup, records.params)))
    return {"a rate that is logged is not the schedule's": beyond}


oracle = schedule.Scheduled(
    own_first,
    warmup,
    SCHEDULE,
    facts=lambda at: {"logged": schedule.RATES, **applied.Single.shapes()},
    odd=odd,
    picture=schedule.rates("with the bug, the first step uses another rate than the schedule's"),
    checks=[usual_checks.loss_ends_higher, logged_unlike],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD under WarmupLR; record the rate of each step."""
    from scenarios.common import linear, plain_torch
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    rates_of = {"warmup_min_lr": p.low, "warmup_max_lr": p.high, "warmup_num_steps": p.warmup}
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            regression.sgd(own_rate(p)),
            train_micro_batch_size_per_gpu=p.batch,
            zero_optimization={"stage": 0},
            scheduler={"type": SCHEDULE, "params": {**rates_of, "warmup_type": "linear"}},
        )
        schedule.watch(ctx.record, engine.optimizer)
    ctx.record("schedule", name=type(engine.lr_scheduler).__name__)
    data = linear.batches(ctx, engine.module, ctx.world_size * p.batch, 20.0, 0.1)
    for step, rows in zip(api.each(p.steps), data, strict=False):
        update = plain_torch.Update(
            plain_torch.loss_of(engine.module, linear.loss), engine.module, rows
        )
        loss = regression.step(ctx, engine, rows)
        logged = [float(rate) for rate in engine.get_lr()]
        ctx.record("step", step, loss=loss, logged=logged, **update.facts(1.0))


def exercised(records: api.Records) -> api.Exercise:
    """Steps were taken under a warmup that starts at another rate than the optimizer's own."""
    own, low, steps = own_rate(records.params), records.params.low, len(records.of("rate", 0))
    text = f"the optimizer's own rate is {own:g}, the schedule's first {low:g}; {steps} steps"
    return api.Exercise.of(own != low and steps > 0, f"{text} under {SCHEDULE}", text)
