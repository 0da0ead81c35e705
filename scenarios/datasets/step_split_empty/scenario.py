"""A streamed tar file that ranks share goes to rank 0 alone: the other ranks have no rows.

This affected users who stream a WebDataset, or other tables of a single row, and split it with
``split_dataset_by_node`` where the ranks do not divide the number of shards. Rank 0 gets all rows.
A loop that waits for each rank's rows hangs; one that goes on trains on one rank of many.

Root cause: such a stream gives each rank one row of every N. Since 4.8.0 ``StepExamplesIterable``
takes them from each Arrow table by itself, and begins to count anew in the next one. A tar file
arrives in tables of one row: that row belongs to rank 0. The fix counts on from table to table.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows


def first_alone(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """Rank 0 has all rows, and the other ranks have none."""
    whole = list(range(records.params.rows))
    return all(ranks == [whole, *([[]] * (len(ranks) - 1))] for ranks in _epochs(records))


def _epochs(records: api.Records) -> list[list[list[int]]]:
    return [list(map(list, ranks)) for ranks in rows.by_epoch(records).values()]


oracle = epochs.Epochs(
    first_alone,
    checks=(epochs.another_number, epochs.row_twice),
    picture=api.grid(
        "Which rank got each row",
        "with the bug, rank 0 gets all rows",
        lambda records: (
            (row, epoch, f"rank {rank}")
            for epoch, ranks in rows.by_epoch(records).items()
            for row, rank in sorted(
                (row, rank) for rank, those in enumerate(ranks) for row in those
            )
        ),
        x="row",
        y="epoch",
        value="on",
    ),
)


def run(ctx: api.Context) -> None:
    """Write tar files of numbered texts, stream this rank's part of them, and record its rows."""
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    p = ctx.params
    files = [ctx.folder / f"{ctx.rank}-{shard}.tar" for shard in range(p.shards)]
    for shard, file in enumerate(files):
        _write(file, range(p.rows * shard // p.shards, p.rows * (shard + 1) // p.shards))
    names: Any = {"train": list(map(str, files))}
    stream = load_dataset("webdataset", data_files=names, split="train", streaming=True)
    part = split_dataset_by_node(stream, rank=ctx.rank, world_size=ctx.world_size)
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=[int(row["txt"]) for row in part])


def _write(file: Path, numbers: Sequence[int]) -> None:
    with tarfile.open(file, "w") as tar:
        for number in numbers:
            entry, content = tarfile.TarInfo(f"{number:03d}.txt"), str(number).encode()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def exercised(records: api.Records) -> api.Exercise:
    """The ranks do not divide the number of tar files."""
    ranks, shards = len(records.ranks), records.params.shards
    return api.Exercise.of(shards % ranks != 0, f"shards: {shards}, ranks: {ranks}")
