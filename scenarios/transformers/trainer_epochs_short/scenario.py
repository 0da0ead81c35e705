"""With gradient accumulation, the Trainer stops before the epochs that were asked for.

This affected users who set ``num_train_epochs`` and ``gradient_accumulation_steps``, if the number
of batches of an epoch is no multiple of the micro-batches of a step. With 9 rows, batches of 2, 2
micro-batches and 10 epochs, 72 of 90 rows come. The schedule reaches its end, the run ends without
an error, and only the last logged epoch, 8.0 for 10, shows it. For large data the loss is less
than one step in each epoch; it is large for small data and many micro-batches: half of the
training, if an epoch has 1.9 steps. Since 4.47 the rows behind the last whole step of an epoch are
read, but do not count in a step, so even fewer are trained.

Root cause: the number of steps is planned as epochs * (batches // micro-batches), which leaves out
the last, smaller step of each epoch. But the loop makes that step, or reads its rows: so the
planned steps are over early.
"""

from __future__ import annotations

from harness.bugs import api

BATCH = 2
"""Rows of a micro-batch."""


def plan(at: api.Position) -> api.Plan:
    """The rows in their order, and what the Trainer says of the run."""
    run = {"seen": api.many(api.COUNT), "steps": api.COUNT, "epoch": api.SIZE, "rate": api.SIZE}
    return {"run": api.Kind(run)}


def run(ctx: api.Context) -> None:
    """Train for some epochs with the Trainer."""
    from scenarios.transformers import _linear_runs as runs

    p = ctx.params
    trainer, model, _ = runs.train(
        ctx,
        "whole",
        0,
        p.rows,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=p.accumulation,
        num_train_epochs=p.epochs,
    )
    ctx.record(
        "run",
        seen=model.seen,
        steps=trainer.state.global_step,
        epoch=float(trainer.state.epoch),
        rate=float(trainer.lr_scheduler.get_last_lr()[0]),
    )


def detect(records: api.Records) -> api.Finding | None:
    """Rows come less often than there are epochs, and none comes more often. The number of steps is
    that of whole steps alone: epochs * (batches // micro-batches)."""
    p, (run,) = records.params, records.of("run")
    counts = [run["seen"].count(row) for row in range(p.rows)]
    if set(counts) == {p.epochs}:
        return None
    total, came = p.rows * p.epochs, len(run["seen"])
    whole = -(-p.rows // BATCH) // p.accumulation
    return api.Finding(
        f"{came} of {total} rows came, in {run['steps']} steps; the Trainer says that it trained "
        f"{run['epoch']:.3g} of {p.epochs} epochs",
        step=run["steps"],
        ranks=records.ranks,
        magnitude=1 - came / total,
        unit="of the rows that were asked for never came",
        documented=max(counts) <= p.epochs and run["steps"] == p.epochs * whole,
    )


def exercised(records: api.Records) -> api.Exercise:
    """The micro-batches of a step do not divide the batches of an epoch."""
    p = records.params
    batches = -(-p.rows // BATCH)
    text = f"{batches} batches in an epoch, {p.accumulation} in a step"
    return api.Exercise.of(batches % p.accumulation > 0, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The schedule has reached its end, and all rows came."""
    (run,) = records.of("run")
    return {
        "the learning rate is not 0 at the end": run["rate"] > 1e-9,
        "a row never came": set(run["seen"]) != set(range(records.params.rows)),
    }


picture = api.bars(
    "How often each row came",
    "without the bug each row comes as often as there are epochs",
    lambda records: [
        (f"row {row}", float(records.of("run")[0]["seen"].count(row)))
        for row in range(records.params.rows)
    ],
    "times",
)
