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
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import epochs, rows


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(11, least=6, about="of the dataset")
    epochs: int = api.knob(3, least=1, about="passes over the dataset, each with its own sampler")
    shuffle: bool = api.knob(True, about="whether the sampler shuffles")


SCENARIO = api.Scenario(
    report=(
        "CHANGELOG, Unreleased: sharding remainder was dropped even when "
        "ShardOptions.drop_remainder=False",
        "https://github.com/google/grain/blob/main/CHANGELOG.md",
    ),
    fix="https://github.com/google/grain/commit/5bad1a2, in no release as of 0.2.18",
    symptom="the remainder of the sharding is dropped with drop_remainder=False",
    trigger="grain.DataLoader with a sampler of several shards, and a number of rows that they do "
    "not divide",
    remedy="use grain.MapDataset and slice it by rank, or repeat rows until the ranks divide them",
    pins={"grain": "0.2.18"},
    harm="loses data",
    visibility="silent",
    lanes=(api.Lane.CPU,),
    settings={"ranks": api.above(1), "code": api.by_code("a grain.DataLoader reads the data")},
    files=("grain/_src/python/data_loader.py",),
    ranks=3,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.2.12"),
        "control": api.control("0.2.18 with rows that the ranks divide", params={"rows": 12}),
        "in_order": api.expect_symptom(about="0.2.18, not shuffled", params={"shuffle": False}),
    },
)


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
