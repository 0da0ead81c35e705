"""A ParallelStreamingDataset that goes on where an epoch ended does so once: then rows repeat.

This affects users of litdata who cycle over data sets with ``ParallelStreamingDataset(length=...,
resume=True)``, and whose epochs end before the loader does, as with Lightning's
``limit_train_batches``. The second epoch goes on behind the first. Each later one has the rows of
the second again, so a long training sees two epochs of rows, and never the others. No message
appears, and the loss falls faster than it should.

Root cause: the loader goes on by loading its own state at the beginning of an epoch, unless it is
about to restore one. Loading a state marks it so, and only the end of the loader's own loop takes
the mark away, which an epoch that is broken off never reaches. The fix takes it away at once.
"""

from __future__ import annotations

from itertools import islice

from harness.bugs import api
from scenarios.common import rows

Rows = list[int]


def plan(at: api.Position) -> api.Plan:
    """The rows of each epoch."""
    return {"epoch": api.Kind(rows.SEEN, api.each(at.params.epochs))}


def run(ctx: api.Context) -> None:
    """Read some batches of each epoch, and end it."""
    from litdata import ParallelStreamingDataset, StreamingDataLoader, StreamingDataset

    from scenarios.litdata import _chunks as chunks

    p = ctx.params
    dataset = StreamingDataset(chunks.written(ctx, p.rows))
    cycle = ParallelStreamingDataset([dataset], length=p.length or p.batches, resume=True)
    loader = StreamingDataLoader(cycle, batch_size=1)
    for epoch in api.each(p.epochs):
        batches = islice(loader, p.batches if p.length else None)
        seen = [int(batch[0]) for batch in batches]
        ctx.record("epoch", epoch, seen=seen)


def _epochs(records: api.Records) -> tuple[dict[int, Rows], dict[int, Rows]]:
    """The rows of each epoch, and the right ones: those behind the epoch before."""
    p = records.params
    expected = {
        epoch: [(p.batches * (epoch - 1) + n) % p.rows for n in range(p.batches)]
        for epoch in api.each(p.epochs)
    }
    return {one["step"]: list(one["seen"]) for one in records.of("epoch")}, expected


def detect(records: api.Records) -> api.Finding | None:
    """The first two epochs are right. All others have the rows of the second."""
    epochs, expected = _epochs(records)
    faults = [epoch for epoch in expected if epochs[epoch] != expected[epoch]]
    if not faults:
        return None
    p, different = records.params, len({row for those in epochs.values() for row in those})
    return api.Finding(
        f"epoch {faults[0]} has the rows {epochs[faults[0]]}, not {expected[faults[0]]}; "
        f"{different} of {min(p.rows, p.batches * p.epochs)} rows come in {p.epochs} epochs",
        step=faults[0],
        magnitude=len(faults) / len(expected),
        unit="of the epochs have rows of another one",
        clock="epoch",
        documented=faults[0] > 2 and all(rows == epochs[2] for e, rows in epochs.items() if e > 2),
    )


def exercised(records: api.Records) -> api.Exercise:
    """More than two epochs were broken off."""
    p = records.params
    text = f"{p.epochs} epochs of {p.batches} batches, of {p.length or p.batches}"
    apart = p.batches % p.rows != 0  # otherwise each epoch has the same rows
    return api.Exercise.of(apart and p.length > p.batches and p.epochs > 2, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss the bug, and whether they fired."""
    epochs, _ = _epochs(records)
    return {
        "a row comes twice in an epoch": any(len(set(one)) < len(one) for one in epochs.values()),
        "the second epoch has the rows of the first": len(epochs) > 1 and epochs[1] == epochs[2],
    }


picture = api.grid(
    "Which rows each epoch has",
    "with the bug, all epochs from the second on have the same rows",
    lambda records: (
        (place, one["step"], row)
        for one in records.of("epoch", 0)
        for place, row in enumerate(one["seen"], 1)
    ),
    x="batch",
    y="epoch",
    value="row",
)
