"""After a resume, each later epoch of a StreamingDataLoader has only the rest of the resumed one.

This affects users of litdata who load the state of a ``StreamingDataLoader`` with workers, and
train for more than the rest of that epoch. The epoch of the resume is right. Each epoch after it
begins at the place of the stop, so the rows before that place never come again: here 40 of 80 rows
are never seen in the second epoch. A run that is stopped late in an epoch trains on very few rows
from then on; its epochs are short, and no error is raised.

Root cause: ``StreamingDataLoader`` marks the resume as done in the dataset of the training process.
The workers get a copy of that dataset in each epoch, and it still contains the loaded state. The
fix deletes that state when an epoch is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows, stops

BATCH = 4
"""Rows of a batch of a rank."""


def only_rest(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """The epoch of the resume is right. In each epoch after it, rows never come: as many on each
    rank as had come before the stop. No row comes twice."""
    after = rows.by_epoch(records, "after")
    lengths = {tuple(map(len, ranks)) for ranks in after.values()}
    whole = [set(rows.together(ranks)) for ranks in rows.by_epoch(records).values()]
    complete = all(len(seen) == records.params.rows for seen in whole)
    late = complete and all(fault.epoch > 1 for fault in faults)
    return late and len(lengths) == 1 and epochs.units(faults) == {epochs.Unit.NEVER}


oracle = stops.Stopped(
    only_rest,
    stop=lambda params: int(params.before > 0),
    checks=(epochs.row_twice, epochs.other_lengths),
)


def run(ctx: api.Context) -> None:
    """Read epochs without a stop; read some batches, load the state into a new loader, go on."""
    from scenarios.litdata import _chunks as chunks

    p = ctx.params
    folder = chunks.written(ctx, p.rows)

    def loader() -> Any:
        return chunks.loader(folder, batch=BATCH, workers=p.workers, shuffle=p.shuffle)

    whole = loader()
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=chunks.read(whole))
    if not p.before:
        return
    stopped, resumed = loader(), loader()
    ctx.record("before", 1, seen=chunks.read(stopped, p.before))
    resumed.load_state_dict(stopped.state_dict())
    for epoch in api.each(p.epochs):
        ctx.record("after", epoch, seen=chunks.read(resumed))


def exercised(records: api.Records) -> api.Exercise:
    """A loader with workers was resumed, and read for more epochs."""
    p, epochs = records.params, len(rows.resumed(records))
    text = f"resumed after {p.before} batches of a rank, with {p.workers} workers; {epochs} epochs"
    return api.Exercise.of(p.workers > 0 and epochs > 1, text)
