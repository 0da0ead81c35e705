"""Resumed in its second epoch or later, a Trainer replays the end of its first epoch.

The resumed run gets the rows that the first epoch had at that place: some rows of the current epoch
come a second time and others never, here 6 of 24. This affects users who resume transformers'
Trainer within an epoch, or who use ``skip_first_batches`` in their own loop. A resume within the
first epoch is right, and so are the epochs after the resume. Losses look normal.

Root cause: the Trainer sets the epoch of its loader. Then ``skip_first_batches`` makes another
loader, without the batches that are done. The new loader counts its epochs from 0, and sets this
epoch when its iteration begins: the seeded sampler goes back to epoch 0. The fix copies the count
to the new loader. Releases of transformers that set the epoch of the new loader are right with any
accelerate, so the bug depends on both packages. ``report.py`` is a loop without transformers: it
has the bug with the same releases of accelerate as a Trainer of transformers 4.46 to 4.57 has.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.transformers import _resumed_rows as resumed


def row_missing(records: api.Records) -> dict[str, bool]:
    """The next epoch is complete."""
    _, stopped = resumed.orders(records)
    missing = len(set(stopped[-1])) < records.params.rows
    return {"a row is missing in the last epoch": missing}


oracle = resumed.Resumed(checks=(resumed.another_number, row_missing))


def run(ctx: api.Context) -> None:
    """Train without a stop; train and stop; resume from the checkpoint."""
    from scenarios.transformers import _resumed_loop as loop

    steps = loop.trained(ctx, grouped=False)
    ctx.record("order", rows=[row for step in steps for row in step])


def detect(records: api.Records) -> api.Finding | None:
    """The rest of the epoch of the resume is the end of the first epoch; all other rows come as in
    the run without a stop, which sees each row once in each epoch."""
    p = records.params
    whole, stopped = resumed.orders(records)
    if any(sorted(epoch) != list(range(p.rows)) for epoch in whole):
        return api.Finding("without a stop, an epoch does not have each row once", documented=False)
    if whole == stopped:
        return None
    number, offset = resumed.stop(records)
    count = len(set(stopped[number]))
    replayed = whole[number][:offset] + whole[0][offset:]
    return api.Finding(
        f"resumed after {offset} of {p.rows} rows of epoch {number + 1}: {count} of {p.rows} rows "
        f"came in that epoch, {p.rows - count} never and {p.rows - count} a second time",
        step=p.stop + 1,
        ranks=records.ranks,
        magnitude=1 - count / p.rows,
        unit="of the epoch's rows seen by nobody",
        documented=stopped == [*whole[:number], replayed, *whole[number + 1 :]],
    )


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed within the second epoch or later, and its epochs have other orders."""
    p = records.params
    whole, _ = resumed.orders(records)
    number, offset = resumed.stop(records)
    text = f"resumed after {offset} of {p.rows} rows of epoch {number + 1}"
    orders = len({tuple(epoch) for epoch in whole})
    return api.Exercise.of(number > 0 and offset > 0, text) & api.Exercise.needs(
        orders == len(whole), f"{len(whole)} epochs have only {orders} orders"
    )
