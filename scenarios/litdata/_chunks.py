"""A litdata dataset of numbered rows, on which ranks train.

Imports litdata: import it inside ``run``.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch.distributed as dist
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import Cache

from harness.bugs import api

CHUNK = 10
"""Rows of a chunk."""


def written(ctx: api.Context, rows: int) -> str:
    """The folder of the dataset; each rank writes its part. Opens the process group."""
    folder = ctx.folder / "rows"
    folder.mkdir(exist_ok=True)
    dist.init_process_group(ctx.lane.backend)
    cache = Cache(input_dir=str(folder), chunk_size=CHUNK)
    part = rows // ctx.world_size
    for row in range(part * ctx.rank, part * (ctx.rank + 1)):
        cache[row] = row
    cache.done()
    dist.barrier()  # merge() would also read a part of the index that is half written
    cache.merge()
    dist.barrier()
    return str(folder)


def loader(folder: str, *, batch: int, workers: int, shuffle: bool, drop_last: bool = False) -> Any:
    """litdata's own loader over its own dataset."""
    dataset = StreamingDataset(folder, shuffle=shuffle, drop_last=drop_last)
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=workers, drop_last=drop_last)


def read(batches: Any, most: int | None = None) -> list[int]:
    """The rows of some batches, or of all."""
    return [row for batch in islice(batches, most) for row in batch.tolist()]
