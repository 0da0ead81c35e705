"""grain's DataLoader drops the rows that the shards do not divide, though drop_remainder is False.

This affects users of ``grain.DataLoader`` on several ranks, with ``num_epochs=1`` and the default
``drop_remainder=False``, which should give some ranks one row more. On n ranks up to n - 1 rows of
an epoch are never seen, here 2 of 11. A shuffled epoch leaves out other rows each time, so a
training hardly notices it. An evaluation does: the same rows are always missing, and the metric
depends on the number of ranks.

Root cause: since 0.2.13 the loader reads through a map dataset over the sampler. Its length is the
number of rows divided by the number of shards, rounded down. The option ``drop_remainder`` is not
looked at. A commit on upstream's main branch adds the remainder, and is in no release as of 0.2.18.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.bugs import api
from scenarios.common import epochs, rows


def remainder(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """In each epoch as many rows never come as remain if the ranks divide them; all ranks have
    equally many, and no row comes twice."""
    count, ranks = records.params.rows, len(records.ranks)
    lengths = {len(seen) for one in rows.by_epoch(records).values() for seen in one}
    return epochs.units(faults) == {epochs.Unit.NEVER} and lengths == {count // ranks}


oracle = epochs.Epochs(remainder, checks=(epochs.row_twice, epochs.other_lengths))


def run(ctx: api.Context) -> None:
    """Read epochs with a loader, each rank its shard."""
    import grain.python as grain

    p = ctx.params
    for epoch in api.each(p.epochs):
        sampler = grain.IndexSampler(
            num_records=p.rows,
            shard_options=grain.ShardOptions(ctx.rank, ctx.world_size, drop_remainder=False),
            shuffle=p.shuffle,
            num_epochs=1,
            seed=ctx.seed + epoch,
        )
        loader = grain.DataLoader(data_source=list(range(p.rows)), sampler=sampler, worker_count=0)
        ctx.record("epoch", epoch, seen=[int(row) for row in loader])


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks share rows that they do not divide."""
    count, ranks = records.params.rows, len(records.ranks)
    return api.Exercise.of(count % ranks > 0, f"{count} rows on {ranks} ranks")
