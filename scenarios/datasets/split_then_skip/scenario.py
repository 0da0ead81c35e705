"""skip() on a stream that is split between ranks gives every rank the rows of all ranks.

This affects users who call ``split_dataset_by_node`` and then ``skip``, for example to leave out
rows for an evaluation or to continue after rows that were seen before. Every rank then trains on
every row once: eight ranks do the work of one. No row is missing, no rank sees a row twice, and all
ranks have the same number of rows, so nothing shows it.

Root cause: when the iteration begins, a rank asks the chain of operations for the rank's part of
the shards. A ``SkipExamplesIterable`` that was added after the split returns itself, with all
shards, instead of asking the stream whose rows it skips. ``take`` asks that stream, and is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.datasets import _splits as splits


@dataclass
class Params(api.Knobs):
    split: str = api.knob(
        splits.FIRST, choices=(splits.FIRST, splits.LAST), about="before or after skip()"
    )
    count: int = api.knob(1, least=1, most=7, unit="rows", about="how many are skipped")


SCENARIO = api.Scenario(
    report=(
        "skip() after split_dataset_by_node gives every rank the whole dataset",
        "https://github.com/huggingface/datasets/issues/8568",
    ),
    fix="https://github.com/huggingface/datasets/pull/8569",
    symptom="each rank iterates every shard, so a distributed run sees each example world_size "
    "times",
    trigger="skip() on an IterableDataset after split_dataset_by_node, with a number of shards "
    "that is a multiple of the number of ranks",
    remedy="call skip() before split_dataset_by_node",
    pins={"datasets": "4.8.5"},
    absent=(
        api.Absent(
            "datasets<2.21",
            "it raises NotImplementedError for a skip after a split",
            "https://github.com/huggingface/datasets/pull/6965",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    lanes=(api.Lane.CPU,),
    settings={
        "ranks": api.above(1),
        "code": api.by_code("a streaming dataset is split between ranks, and then skips rows"),
    },
    seen={"datasets.iterable_dataset.IterableDataset": api.NEEDED},
    files=("datasets/iterable_dataset.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.1.0"),
        "control": api.control(
            "4.8.5, skip() comes before the split", params={"split": splits.LAST}
        ),
    },
)
oracle = splits


def run(ctx: api.Context) -> None:
    """Skip rows of a split stream."""
    count = ctx.params.count
    splits.watch(
        ctx,
        [splits.stream()],
        operation=lambda streams: streams[0].skip(count),
        plainly=lambda parts: parts[0][count:],
    )
