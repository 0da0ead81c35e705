"""Concatenated streams that were split between ranks give every rank the rows of all ranks.

This affects users who split several streams with ``split_dataset_by_node`` and then mix them with
``concatenate_datasets``. Every rank then trains on every row once: eight ranks do the work of one.
No row is missing, no rank sees a row twice, and all ranks have the same number of rows, so nothing
shows it. ``interleave_datasets`` is right.

Root cause: the split is an attribute of the dataset (``_distributed``), and is applied when the
iteration begins. ``concatenate_datasets`` builds a new dataset without this attribute. The fix
copies the attribute, and raises an error if the streams are split differently. We know of no
report.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from harness.bugs import api
from scenarios.datasets import _splits as splits

oracle = splits


def run(ctx: api.Context) -> None:
    """Concatenate two split streams."""

    def joined(streams: Any) -> Any:
        from datasets import concatenate_datasets

        return concatenate_datasets(list(streams))

    streams = [splits.stream(), splits.stream(splits.SHARDS * splits.IN_SHARD)]
    splits.watch(ctx, streams, operation=joined, plainly=lambda parts: [*chain(*parts)])
