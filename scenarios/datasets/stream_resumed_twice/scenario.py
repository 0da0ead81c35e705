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
from itertools import islice
from typing import Any

from harness.bugs import api


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.each * params.resumes >= params.rows:
        raise ValueError("scenario.each times scenario.resumes must be below scenario.rows")


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


def _stream(p: Any) -> Any:
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
