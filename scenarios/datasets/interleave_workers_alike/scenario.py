"""All workers of a loader take an interleaved stream's sources in one and the same sequence.

This affected users who mix streams with ``interleave_datasets`` and probabilities, and read them
with a DataLoader with several workers, which is the usual way to mix corpora. Each worker has a
part of the shards, and should choose its next source at random. But all workers choose the same
source at the same time: with w workers, w batches in a row have the same mixture, and with batches
of one source's length, w batches in a row come from one source. Over the whole training the
proportions are right, so nothing shows it; consecutive steps are far more alike than they should
be. A buffer's shuffle draws the same numbers in all workers as well.

Root cause: each worker gets a copy of the stream with the same generator. Since 4.4.0 a worker
shifts the generators of its copy by its own number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from harness.bugs import api

SOURCES = 3


def plan(at: api.Position) -> api.Plan:
    """The sources that each worker chose, in its order; its step is the worker, from 1."""
    sources = api.many(api.COUNT, at.params.rows)
    return {"worker": api.Kind({"sources": sources}, api.each(at.params.workers))}


def run(ctx: api.Context) -> None:
    """Read an interleaved stream with several workers."""
    from torch.utils.data import DataLoader

    p = ctx.params
    loader = DataLoader(_stream(ctx), batch_size=1, num_workers=p.workers)
    sources: dict[int, list[int]] = {worker: [] for worker in range(p.workers)}
    for row in itertools.islice(loader, p.workers * p.rows):
        sources[int(row["shard"][0]) % p.workers].append(int(row["source"][0]))
    for worker, chosen in sources.items():
        ctx.record("worker", worker + 1, sources=chosen)


def _stream(ctx: api.Context) -> Any:
    """An endless enough stream of several sources, each with one shard for each worker."""
    from datasets import IterableDataset, interleave_datasets

    p = ctx.params
    streams = [
        IterableDataset.from_generator(
            _rows, gen_kwargs={"shards": list(range(p.workers)), "source": source, "count": p.rows}
        )
        for source in range(SOURCES)
    ]
    chances = [1 / SOURCES] * SOURCES if p.mixed == "at random" else None
    return interleave_datasets(streams, probabilities=chances, seed=ctx.seed)


def _rows(shards: list[int], source: int, count: int) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"source": source, "shard": shard} for _ in range(count))


def _by_worker(records: api.Records) -> list[list[int]]:
    return [record["sources"] for record in records.of("worker")]


def detect(records: api.Records) -> api.Finding | None:
    """All workers chose the same sources in the same order, at random."""
    first, *others = _by_worker(records)
    alike = sum(chosen == first for chosen in others)
    if not alike or records.params.mixed == "in turn":
        return None
    return api.Finding(
        f"{alike + 1} of {len(others) + 1} workers chose the same {len(first)} sources in the same "
        "order",
        step=1,
        ranks=records.ranks,
        magnitude=(alike + 1) / (len(others) + 1),
        unit="of the workers have the sequence of the first",
        clock="row",
        documented=alike == len(others),
    )


def exercised(records: api.Records) -> api.Exercise:
    """Several workers chose sources at random."""
    p, by_worker = records.params, _by_worker(records)
    text = f"{p.workers} workers chose {p.rows} sources each, {p.mixed}"
    in_turn = all(chosen == [n % SOURCES for n in range(p.rows)] for chosen in by_worker)
    return api.Exercise.of(not in_turn, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The proportions of the sources are those that were asked for, in each worker."""
    shares = [
        chosen.count(n) / len(chosen) for chosen in _by_worker(records) for n in range(SOURCES)
    ]
    return {"a worker has a source in less than a tenth of its rows": min(shares) < 0.1}


picture = api.grid(
    "The source of each row, by worker",
    "with the bug all workers have the same sequence",
    lambda records: (
        (place, f"worker {worker}", f"source {source}")
        for worker, chosen in enumerate(_by_worker(records), 1)
        for place, source in enumerate(chosen, 1)
    ),
    x="row of the worker",
    y="worker",
    value="source",
)
