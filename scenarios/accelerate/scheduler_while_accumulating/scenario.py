"""A scheduler that accelerate has prepared steps with each micro-batch, not with the optimizer.

With ``gradient_accumulation_steps=4`` the schedule ends after a quarter of the training. For a
linear decay from 1 in 8 steps, the rates are 0.625, 0.125 and then 0; the right ones are 1, 0.875,
... 0.125. A warmup is four times too short. The losses of the micro-batches are right, and fall at
first, but most of the data trains nothing. This affects users who step a prepared scheduler inside
``accumulate()``.

Root cause: inside ``accumulate()`` the prepared optimizer does nothing until the gradients are to
be synchronised. AcceleratedScheduler only checks whether the optimizer *skipped* a step, which it
did not. The fix checks the gradient state, as the optimizer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import applied, plain_loss, usual_checks
from scenarios.deepspeed import _schedule as schedule

PREPARED = "AcceleratedScheduler"
"""The name of accelerate's class."""

ROWS = 16
"""Rows of a micro-batch."""


def each_micro_batch(deviations: Sequence[schedule.Deviation], records: api.Records) -> bool:
    """The rates are those of a schedule that steps with each micro-batch. Each step moved the
    weights by its rate times the gradient of its micro-batches."""
    p = records.params
    return not schedule.deviations(records, lambda step: _rate(p, p.accumulation * step - 1))


def _rate(p: Any, count: int) -> float:
    """The rate after so many steps of the schedule."""
    return float(p.lr * max(0.0, 1 - count / p.steps))


def odd(records: api.Records) -> Iterator[str]:
    """Other faults, in the movements and in the losses."""
    yield from schedule.not_moved(records)
    yield from plain_loss.loss_wrong(records)


def rate_rises(records: api.Records) -> dict[str, bool]:
    """A rate that decays never rises."""
    rates = [record["rates"][0] for record in records.of("rate", 0)]
    return {"a rate is above the one before": rates != sorted(rates, reverse=True)}


oracle = schedule.Scheduled(
    each_micro_batch,
    lambda p, step: _rate(p, step - 1),
    PREPARED,
    facts=lambda at: applied.Step.shapes(micro=api.many(api.NUMBER, at.params.accumulation)),
    odd=odd,
    picture=schedule.rates("with the bug the schedule is over long before the training is"),
    checks=[usual_checks.loss_ends_higher, plain_loss.loss_unlike_reference, rate_rises],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map under accumulate(); record the rate of each step."""
    import torch
    from accelerate import Accelerator
    from torch.optim import lr_scheduler
    from torch.utils.data import DataLoader

    from scenarios.common import linear, plain_torch

    class Linear(lr_scheduler.LambdaLR, lr_scheduler._LRScheduler):
        """A scheduler that every release accepts: 0.16.0 demands the base class of torch 1."""

    p = ctx.params
    with ctx.phase("init"):
        accelerator: Any = Accelerator(
            cpu=ctx.lane is api.Lane.CPU, gradient_accumulation_steps=p.accumulation
        )
        plain = linear.model()
        sgd = torch.optim.SGD(plain.parameters(), lr=p.lr)
        falling = Linear(sgd, lambda done: max(0.0, 1 - done / p.steps))
        schedule.watch(ctx.record, sgd)
        data = linear.batches(ctx, plain, ROWS * p.accumulation * p.steps, 20.0, 0.1)
        rows: Any = [*zip(*next(data), strict=True)]
        model, optimizer, loader, scheduler = accelerator.prepare(
            plain, sgd, DataLoader(rows, batch_size=ROWS), falling
        )
    ctx.record("schedule", name=type(scheduler).__name__)
    step, window, losses = 0, [], []
    for batch in loader:
        before = plain_torch.copied(plain)
        with accelerator.accumulate(model):
            loss = linear.loss(model(batch[0]), batch[1])
            losses.append(float(loss.detach()))  # before 0.13 backward divides it in place
            accelerator.backward(loss)
            optimizer.step()
            if accelerator.sync_gradients or not p.only_synced:
                scheduler.step()
            optimizer.zero_grad()
        window.append(batch)
        if accelerator.sync_gradients:
            step += 1
            torchs = plain_torch.differentiate(
                plain_torch.loss_of(plain, linear.loss), before, window
            )
            facts = plain_torch.facts(torchs, before, plain_torch.copied(plain), 1.0)
            ctx.record("step", step, loss=sum(losses) / len(losses), **facts)
            window, losses = [], []


def exercised(records: api.Records) -> api.Exercise:
    """A prepared scheduler was stepped, and each step of the optimizer came after several
    micro-batches, as many as were requested."""
    steps, requested = records.of("step"), records.params.accumulation
    (scheduler,) = records.of("schedule")
    text = f"{len(steps)} steps of {requested} micro-batches each, with {scheduler['name']}"
    counted = all(len(step["micro"]) == requested for step in steps)
    always = not records.params.only_synced
    return (
        api.Exercise.needs(requested > 1, "no accumulation was requested")
        & api.Exercise.of(counted, text, f"not {text}")
        & api.Exercise.needs(always, "the scheduler was stepped only after the last micro-batch")
    )
