"""A resumed stream saves a state at its beginning: the second resume begins with the first row.

This affects anyone who trains on a streaming IterableDataset and resumes the run more than once.
The first resume goes on at the right row. But each checkpoint that the resumed run writes says that
nothing has been read. After the next resume the training sees all rows again from the first one,
and the last rows never come if the number of steps is fixed. No message appears, and the loss may
look better, as the rows are known.

Root cause: ``load_state_dict`` of the inner iterable makes a new dictionary for its state since
5.0.0. The dataset has taken the old one for its own state, before it loads, and goes on reporting
it: its place is the beginning. The fix takes the new one after loading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from harness.bugs import api


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(40, least=10, about="number of rows in the stream")
    shards: int = api.knob(2, least=1, about="number of Arrow tables that hold the rows")
    each: int = api.knob(9, least=1, unit="rows", about="how many are read before a checkpoint")
    resumes: int = api.knob(2, least=1, about="how often the run is stopped and resumed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.each * self.resumes >= self.rows:
            raise ValueError("scenario.each times scenario.resumes must be below scenario.rows")


SCENARIO = api.Scenario(
    report=(
        "Streaming IterableDataset state stops advancing after first resume — second resume "
        "restarts from the beginning",
        "https://github.com/huggingface/datasets/issues/8308",
        "https://github.com/pytorch/torchtitan/issues/3907",
    ),
    fix="https://github.com/huggingface/datasets/pull/8295",
    symptom="a second consecutive resume restarts the entire data stream from scratch",
    trigger="a second resume of an IterableDataset, from a state that a resumed one has saved",
    pins={"datasets": "5.0.0"},
    absent=(
        api.Absent(
            "datasets<5.0",
            "only since 5.0.0 load_state_dict makes a new dictionary",
            "https://github.com/huggingface/datasets/pull/8194",
        ),
    ),
    harm="wrong resume",
    visibility="silent",
    lanes=(api.Lane.CPU,),
    settings={"code": api.by_code("a streaming dataset is resumed twice")},
    files=("datasets/iterable_dataset.py",),
    releases="datasets>=2.20",  # older releases keep no state
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.0.1"),
        "control": api.control("5.0.0, resumed once", params={"resumes": 1}),
        "thrice": api.expect_symptom(
            about="5.0.0, resumed three times: the third resume begins with the first row, too",
            params={"resumes": 3},
        ),
    },
)
_SEEN = {"seen": api.many(api.COUNT)}


def plan(at: api.Position) -> api.Plan:
    """The rows that each part of the run saw, and the rows of a run without a stop."""
    return {"whole": api.Kind(_SEEN), "part": api.Kind(_SEEN, api.each(at.params.resumes + 1))}


def run(ctx: api.Context) -> None:
    """Read some rows, save the state, load it into a new dataset, and so on; then read the rest."""
    p, saved = ctx.params, ""
    ctx.record("whole", seen=_numbers(_stream(p)))
    for part in api.each(p.resumes + 1):
        stream = _stream(p)
        if saved:
            stream.load_state_dict(json.loads(saved))  # as through a file
        rows = _numbers(islice(stream, None if part > p.resumes else p.each))
        saved = json.dumps(stream.state_dict())
        ctx.record("part", part, seen=rows)


def _stream(p: Params) -> Any:
    """A stream of numbered rows, made as at the start of each process."""
    from datasets import Dataset

    rows = Dataset.from_dict({"row": list(range(p.rows))})
    return rows.to_iterable_dataset(num_shards=p.shards)


def _numbers(rows: Any) -> list[int]:
    return [int(row["row"]) for row in rows]


def detect(records: api.Records) -> api.Finding | None:
    """The first resume goes on where the run was stopped. Each later one begins with the first
    row."""
    whole, parts = records.one("whole"), [part["seen"] for part in records.of("part")]
    if whole is None:
        return None
    expected, rows = whole["seen"], [row for part in parts for row in part]
    if rows == expected == list(range(records.params.rows)):
        return None
    again = len(rows) - len(set(rows))
    return api.Finding(
        f"resumed {len(parts) - 1} times: {again} of {len(expected)} rows come again, "
        f"{len(set(expected) - set(rows))} never; the parts begin with the rows "
        + ", ".join(str(part[0]) if part else "none" for part in parts),
        step=next(
            (n for n, part in enumerate(parts, 1) if n > 2 and part[:1] == expected[:1]), None
        ),
        ranks=records.ranks,
        magnitude=again / len(expected),
        unit="of the rows seen again",
        clock="part",
        documented=expected == list(range(records.params.rows))
        and parts == _frozen(expected, records),
    )


def _frozen(rows: list[int], records: api.Records) -> list[list[int]]:
    """The rows of each part if a resumed stream saves the state of the beginning."""
    length, resumes = records.params.each, records.params.resumes
    starts = [0, length, *[0] * (resumes - 1)]
    ends = [start + length for start in starts[:-1]] + [len(rows)]
    return [rows[start:end] for start, end in zip(starts, ends, strict=True)]


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed from the state of a resumed run."""
    resumes = records.params.resumes
    return api.Exercise.of(resumes > 1, f"resumed {resumes} times")


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks of one part of the run, and of the first resume, and whether they fired."""
    parts = [part["seen"] for part in records.of("part")]
    return {
        "a row comes twice between two stops": any(len(set(part)) < len(part) for part in parts),
        "the first resume does not go on behind the stop": parts[1][0] != parts[0][-1] + 1,
    }


def _came(records: api.Records) -> Iterator[tuple[int, str, str]]:
    """How often each row came."""
    rows = [row for part in records.of("part", 0) for row in part["seen"]]
    for row in range(records.params.rows):
        yield row, "", {0: "never", 1: "once"}.get(rows.count(row), "again")


picture = api.grid(
    "How often each row came in a run that was resumed twice",
    "with the bug, the second resume begins with the first row",
    _came,
    x="row",
    value="came",
    wrong=("never", "again"),
)
