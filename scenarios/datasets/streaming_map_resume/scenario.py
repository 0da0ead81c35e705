"""A streaming dataset with .map() skips rows when it is resumed from a checkpoint.

The state says that all of an Arrow chunk has been seen, when one row of it has come out of map().
What was left of the chunk at the checkpoint is never trained on, in silence. It needs no second
rank: a resume in the middle of a chunk loses the rest of it.

Root cause: since 3.3.0 map() formats Arrow tables in a ``FormattedExamplesIterable``, which takes a
whole table and yields its rows: the position below it is the table's end from the first row on.
map() put a ``RebatchedArrowExamplesIterable``, which hands on one row at a time, before it only
where the dataset has a format, and not where it is the features that ask for formatting. The fix
does so in both cases. filter() has the same flaw of its own, and kept it until 5.0.1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from harness.facts.plan import Plan
from harness.knobs import Knobs, knob
from harness.spec import (
    Context,
    Exercise,
    Finding,
    Position,
    Records,
    Scenario,
    affected,
    unaffected,
)
from scenarios.datasets.streaming_map_resume import stream

BATCH = 4
"""Rows of a batched map()."""


@dataclass
class Params(Knobs):
    rows: int = knob(40, least=2, about="in the stream")
    shards: int = knob(2, least=1, about="the Arrow tables that they come in, one after another")
    before: int = knob(7, least=1, unit="rows", about="taken before the checkpoint")
    transform: str = knob(
        "map", choices=("none", "map", "batched", "filter"), about="of the stream"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.before >= self.rows:
            raise ValueError("scenario.before must be below scenario.rows")


SCENARIO = Scenario(
    report=(
        "`.map()` on a streaming IterableDataset silently skips examples after load_state_dict",
        "https://github.com/huggingface/datasets/issues/8145",
        "https://github.com/huggingface/datasets/issues/7630",
    ),
    fix="https://github.com/huggingface/datasets/pull/8147 (4.8.5); filter(): "
    "https://github.com/huggingface/datasets/pull/8360 (5.0.1)",
    symptom="after load_state_dict it jumps forward by up to one Arrow read chunk",
    trigger="an IterableDataset with .map() that is resumed in the middle of an Arrow table",
    remedy="use datasets 4.8.5 or later (for filter() 5.0.1), or map in the collator",
    pins={"datasets": "4.8.4"},
    goes_wrong="data",
    files=("datasets/iterable_dataset.py",),
    releases="datasets>=2.20",  # those before keep no state
    ranks=1,
    variants={
        "buggy": affected(),
        "fixed": unaffected("4.8.5"),
        "control": unaffected(
            about="4.8.4 without map()", params={"transform": "none"}, triggers=False
        ),
        "batched": affected(about="4.8.4 with a batched map()", params={"transform": "batched"}),
        "filter": affected(
            "4.8.5",
            about="the release that mended map(): filter() still skips",
            params={"transform": "filter"},
        ),
    },
)


def plan(at: Position) -> Plan:
    """The rows before the checkpoint, after it, and without one."""
    return stream.plan(at.params.before, **_told(at.params))


def _told(params: Params) -> dict[str, Any]:
    """What is recorded of the stream as it is made."""
    return {
        "transform": params.transform,
        "rows": params.rows,
        "tables": _ends(params),
        "batch": BATCH if params.transform == "batched" else 0,
        "mark": int(params.transform in ("map", "batched")),
    }


def run(ctx: Context) -> None:
    """Take some rows, carry the state over into a new dataset, and take all that is left."""
    params = ctx.params
    dataset = _dataset(params)
    rows = iter(dataset)
    before = [next(rows) for _ in range(params.before)]
    state = json.loads(json.dumps(dataset.state_dict()))  # as through a file
    resumed = _dataset(params)
    resumed.load_state_dict(state)
    after, whole = list(resumed), list(_dataset(params))
    named = {"before": before, "after": after, "whole": whole}
    ctx.record(
        "resume",
        **_told(params),
        marks=sorted({int(row["mark"]) for rows in named.values() for row in rows}),
        **{name: [int(row["id"]) for row in rows] for name, rows in named.items()},
    )


def _ends(params: Params) -> list[int]:
    """Where the tables end, which are as long as one another, or the first ones a row longer."""
    size, longer = divmod(params.rows, params.shards)
    return [size * n + min(n, longer) for n in range(1, params.shards + 1)]


def _dataset(params: Params) -> Any:
    """A stream of numbered rows, as it is made at the start of each process.

    A map counts in a row's ``mark`` that it was applied.
    """
    from datasets import Dataset

    stream = Dataset.from_dict({"id": list(range(params.rows)), "mark": [0] * params.rows})
    stream = stream.to_iterable_dataset(num_shards=params.shards)
    transforms = {
        "none": lambda: stream,
        "map": lambda: stream.map(lambda row: {"mark": row["mark"] + 1}),
        "batched": lambda: stream.map(
            lambda rows: {"mark": [mark + 1 for mark in rows["mark"]]},
            batched=True,
            batch_size=BATCH,
        ),
        "filter": lambda: stream.filter(bool),
    }
    return transforms[params.transform]()


def detect(records: Records) -> Finding | None:
    """The rows before the checkpoint and after it are not those of a run that goes on."""
    return stream.skipped(records)


def exercised(records: Records) -> Exercise:
    """A stream with a transform was resumed, in the middle."""
    transform = next((r["transform"] for r in records.of("resume")), "none")
    told = f"the stream had the transform {transform}"
    return stream.resumed(records) & Exercise.of(transform != "none", told, told)


picture = stream.around_resume
insufficient_checks = stream.blind
