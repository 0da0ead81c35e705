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

from harness.bugs import api
from scenarios.datasets import _splits as splits

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
