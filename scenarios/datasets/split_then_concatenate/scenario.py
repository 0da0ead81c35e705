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

from dataclasses import dataclass
from itertools import chain
from typing import Any

from harness.bugs import api
from scenarios.datasets import _splits as splits


@dataclass
class Params(api.Knobs):
    split: str = api.knob(
        splits.FIRST,
        choices=(splits.FIRST, splits.LAST),
        about="before or after concatenate_datasets()",
    )


SCENARIO = api.Scenario(
    report=("no report; found while the one of skip() was reproduced",),
    fix="in datasets 5.2.0",
    symptom="every rank iterates all rows of streams that were split before they were concatenated",
    trigger="concatenate_datasets of IterableDatasets after split_dataset_by_node",
    remedy="concatenate before split_dataset_by_node",
    pins={"datasets": "5.1.0"},
    absent=(
        api.Absent(
            "datasets<2.12",
            "it raises NotImplementedError for a split of a part that take() has made",
            "https://github.com/huggingface/datasets/pull/5735",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    lanes=(api.Lane.CPU,),
    settings={
        "ranks": api.above(1),
        "code": api.by_code("streaming datasets are split between ranks, and then concatenated"),
    },
    seen={"datasets.iterable_dataset.IterableDataset": api.NEEDED},
    files=("datasets/iterable_dataset.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.2.0"),
        "control": api.control(
            "5.1.0, the concatenated stream is split", params={"split": splits.LAST}
        ),
    },
)
oracle = splits


def run(ctx: api.Context) -> None:
    """Concatenate two split streams."""

    def joined(streams: Any) -> Any:
        from datasets import concatenate_datasets

        return concatenate_datasets(list(streams))

    streams = [splits.stream(), splits.stream(splits.SHARDS * splits.IN_SHARD)]
    splits.watch(ctx, streams, operation=joined, plainly=lambda parts: [*chain(*parts)])
