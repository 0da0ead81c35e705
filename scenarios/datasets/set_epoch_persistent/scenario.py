"""set_epoch() of a streaming dataset does not reach persistent workers: all epochs have one order.

This affects users who shuffle a streaming dataset and read it with a DataLoader that has
``persistent_workers=True``. They call ``set_epoch`` before each epoch, as the documentation says,
but every epoch has the order of the first one. Each epoch is complete, so nothing shows it.

Root cause: ``set_epoch`` sets an attribute of the dataset in the training process. Each worker has
a copy of the dataset, made when the worker was started, and persistent workers are started only
once. The fix keeps the epoch in memory that all of them share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from harness.bugs import api

BATCH = 4
"""Rows of a batch."""


def plan(at: api.Position) -> api.Plan:
    """The rows of each epoch: as the worker gave them, and without a worker, which may be another
    order."""
    rows = api.many(api.COUNT, at.params.rows)
    epoch = {"seen": rows, "right": rows, "worker": api.COUNT}
    return {"epoch": api.Kind(epoch, api.each(at.params.epochs))}


def run(ctx: api.Context) -> None:
    """Read some epochs from a worker, and the same epochs without a worker."""
    from torch.utils.data import DataLoader

    p = ctx.params
    stream, direct = _shuffled(ctx), _shuffled(ctx)
    loader = DataLoader(stream, BATCH, num_workers=1, persistent_workers=p.persistent)
    workers: list[int] = []
    for epoch in range(1, p.epochs + 1):
        for dataset in (stream, direct):
            dataset.set_epoch(epoch - 1)
        batches = list(loader)
        process = int(batches[0]["process"][0])
        workers += [process] if process not in workers else []
        ctx.record(
            "epoch",
            epoch,
            seen=[int(row) for batch in batches for row in batch["row"]],
            right=[int(row["row"]) for row in direct],
            worker=workers.index(process),
        )


def _shuffled(ctx: api.Context) -> Any:
    from datasets import IterableDataset

    stream = IterableDataset.from_generator(_rows, gen_kwargs={"count": ctx.params.rows})
    return stream.shuffle(seed=ctx.seed, buffer_size=ctx.params.rows)


def _rows(count: int) -> Iterator[dict[str, int]]:
    yield from ({"row": row, "process": os.getpid()} for row in range(count))


def detect(records: api.Records) -> api.Finding | None:
    """Every epoch has the order of the first one, and each has every row once."""
    epochs, rows = records.of("epoch"), list(range(records.params.rows))
    orders = [one["seen"] for one in epochs]
    complete = all(sorted(order) == rows for order in orders)
    repeated = [one["step"] for one in epochs if orders.count(one["seen"]) > 1]
    if complete and not repeated:
        return None
    return api.Finding(
        f"epochs {', '.join(map(str, repeated))} have the same order of rows"
        if complete
        else "an epoch does not have each row once",
        min(repeated, default=1),
        ranks=records.ranks,
        magnitude=len(repeated) / len(epochs),
        unit="of the epochs have the order of another",
        clock="epoch",
        documented=complete and all(order == orders[0] for order in orders),
    )


def exercised(records: api.Records) -> api.Exercise:
    """One worker process read all epochs, which have different orders without a worker."""
    epochs = records.of("epoch")
    orders = {tuple(one["right"]) for one in epochs}
    workers = {one["worker"] for one in epochs}
    text = f"{len(epochs)} epochs, read by {len(workers)} worker process(es)"
    return api.Exercise.of(
        len(orders) == len(epochs), f"the dataset has {len(orders)} orders", "it did not shuffle"
    ) & api.Exercise.of(len(workers) == 1, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Each epoch is shuffled and complete."""
    epochs, rows = records.of("epoch"), list(range(records.params.rows))
    return {
        "an epoch is not shuffled": any(one["seen"] == rows for one in epochs),
        "an epoch does not have each row once": any(sorted(one["seen"]) != rows for one in epochs),
    }


picture = api.grid(
    "The order of each epoch",
    "with the bug all epochs are alike; otherwise each has an order of its own",
    lambda records: (
        (place, one["step"], row)
        for one in records.of("epoch")
        for place, row in enumerate(one["seen"], 1)
    ),
    x="place",
    y="epoch",
    value="row",
)
