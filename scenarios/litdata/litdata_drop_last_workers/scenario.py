"""With drop_last and several workers, litdata drops up to a batch of each worker, not of each rank.

This affects users of a ``StreamingDataLoader`` with ``drop_last=True`` and several workers. Of 100
rows on 2 ranks with 4 workers each and batches of 8, only 64 come in an epoch, where 96 fill the
batches of both ranks. The more workers, the more rows are left out, so that the data of a run
depends on a setting that should only change its speed. All ranks have equally many batches, and no
error is raised.

Root cause: each worker gets a part of the rank's rows and makes batches of its own. The function
that assigns rows to workers rounds the rows of each worker down to whole batches. The fix rounds
the rows of each rank, and lets some workers have a batch more than others.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.bugs import api
from scenarios.common import epochs, rows


def of_each_worker(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """Each worker leaves out the rows that do not fill its last batch, so in each epoch more rows
    are left out than those that do not fill a batch of each rank. No row comes twice."""
    p, ranks = records.params, len(records.ranks)
    of_worker = p.rows // (ranks * p.workers) // p.batch * p.batch
    lengths = {len(seen) for one in rows.by_epoch(records).values() for seen in one}
    return epochs.units(faults) == {epochs.Unit.NEVER} and lengths == {of_worker * p.workers}


def left_out(records: api.Records) -> int:
    """The rows that do not fill a batch of each rank."""
    p = records.params
    return int(p.rows % (p.batch * len(records.ranks)))


oracle = epochs.Epochs(
    of_each_worker, spare=left_out, checks=(epochs.row_twice, epochs.other_lengths)
)


def run(ctx: api.Context) -> None:
    """Read some epochs with drop_last and workers."""
    from scenarios.litdata import _chunks as chunks

    p = ctx.params
    folder = chunks.written(ctx, p.rows)
    loader = chunks.loader(folder, batch=p.batch, workers=p.workers, shuffle=True, drop_last=True)
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=chunks.read(loader))


def exercised(records: api.Records) -> api.Exercise:
    """Several workers share a rank's rows, and their parts are not whole batches."""
    p = records.params
    share = p.rows / len(records.ranks) / p.workers
    text = f"{p.workers} workers of a rank with {share:g} rows each, in batches of {p.batch}"
    return api.Exercise.of(p.workers > 1 and share % p.batch > 0, text)
