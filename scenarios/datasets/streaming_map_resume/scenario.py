"""A resumed streaming dataset with .map() never yields the rest of a half-read Arrow table.

This affects anyone who trains on a streaming IterableDataset with map() and resumes from a
checkpoint, on one rank or on many. The rows between the checkpoint and the end of the table are
never trained on, and nothing reports it: here 13 of 40 rows.

Root cause: since 3.3.0, map() formats Arrow tables in a ``FormattedExamplesIterable``, which takes
a complete table and yields its rows. So the state says that the complete table has been read as
soon as its first row has come out of map(). A ``RebatchedArrowExamplesIterable`` in front of it
would pass on one row at a time, but map() added that only if the dataset has a format, and not if
its features require formatting. The fix adds it in both cases. filter() has the same fault in its
own code, which was fixed in 5.0.1.
"""

from __future__ import annotations

import json
from typing import Any

from harness.bugs import api
from scenarios.datasets.streaming_map_resume import stream


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.before >= params.rows:
        raise ValueError("scenario.before must be below scenario.rows")


oracle = stream


def run(ctx: api.Context) -> None:
    """Read some rows, load the state into a new dataset, and read all that is left."""
    params = ctx.params
    dataset = _dataset(params)
    rows = iter(dataset)
    before = [next(rows) for _ in range(params.before)]
    state = json.loads(json.dumps(dataset.state_dict()))  # as through a file
    resumed = _dataset(params)
    resumed.load_state_dict(state)
    read = {"before": before, "after": list(resumed), "whole": list(_dataset(params))}
    ctx.record(
        "resume",
        marks=sorted({int(row["mark"]) for rows in read.values() for row in rows}),
        **{name: [int(row["id"]) for row in rows] for name, rows in read.items()},
    )


def _dataset(params: Any) -> Any:
    """A stream of numbered rows, built as at the start of each process.

    A map adds 1 to each row's ``mark``.
    """
    from datasets import Dataset

    rows = Dataset.from_dict({"id": list(range(params.rows)), "mark": [0] * params.rows})
    source = rows.to_iterable_dataset(num_shards=params.shards)
    transforms = {
        "none": lambda: source,
        "map": lambda: source.map(lambda row: {"mark": row["mark"] + 1}),
        "batched": lambda: source.map(
            lambda rows: {"mark": [mark + 1 for mark in rows["mark"]]},
            batched=True,
            batch_size=stream.BATCH,
        ),
        "filter": lambda: source.filter(bool),
    }
    return transforms[params.transform]()


def detect(records: api.Records) -> api.Finding | None:
    """The rows before and after the checkpoint are not those of a run without one: the stream
    jumped to the end of the table."""
    return stream.skipped(records)


def exercised(records: api.Records) -> api.Exercise:
    """A stream with a transform was resumed in the middle."""
    transform = records.params.transform
    text = f"the stream had the transform {transform}"
    return stream.resumed(records) & api.Exercise.of(transform != "none", text)
