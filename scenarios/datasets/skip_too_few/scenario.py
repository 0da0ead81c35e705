"""skip(n) on a stream of Arrow tables skips too few rows if n covers the first table.

This affects users who split a stream into ``take(n)`` for the validation and ``skip(n)`` for the
training, or who continue a training with ``skip(n)`` after n rows. The training then has rows of
the validation, or rows that it has seen before. A table often has 1000 rows: ``skip(1000)`` skips
none, and ``skip(10000)`` skips 1000. No row is missing, so nothing shows it.

Root cause: since 4.8.0 ``SkipExamplesIterable`` skips complete Arrow tables. It counts a table that
lies in the skipped part, but then goes on with the code for a table of which the rest is needed. So
it yields a part of the first table, and nothing is skipped behind that. The fix goes on with the
next table. With an operation of rows before skip(), such as map(), the old code of rows is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.rows % params.tables:
        raise ValueError("scenario.tables must divide scenario.rows")
    if params.count >= params.rows:
        raise ValueError("scenario.count must be below scenario.rows")


_ROWS = api.many(api.COUNT)


def plan(at: api.Position) -> api.Plan:
    """The rows of take(n), of skip(n), and of the whole stream."""
    return {"split": api.Kind({"taken": _ROWS, "left": _ROWS, "whole": _ROWS})}


def run(ctx: api.Context) -> None:
    """Split a stream of numbered rows into take(n) and skip(n)."""
    from datasets import Dataset

    p = ctx.params
    rows = Dataset.from_dict({"row": list(range(p.rows))})
    stream = rows.to_iterable_dataset(num_shards=p.tables)  # a shard is a table
    parts = {"taken": stream.take(p.count), "left": stream.skip(p.count), "whole": stream}
    ctx.record("split", **{name: [int(r["row"]) for r in part] for name, part in parts.items()})


def detect(records: api.Records) -> api.Finding | None:
    """skip(n) begins within the first table, or right behind it: the table is counted as skipped,
    and then as many rows of it are left out as are still to be skipped. ``take(n)`` is right."""
    split, p = records.one("split"), records.params
    if split is None:
        return None
    head, tail, whole = split["taken"], split["left"], split["whole"]
    if (head, tail) == (whole[: p.count], whole[p.count :]) and whole == list(range(p.rows)):
        return None
    again, never = set(head) & set(tail), set(whole) - set(head) - set(tail)
    start = min(p.count - (p.rows // p.tables), (p.rows // p.tables))
    sound = whole == list(range(p.rows)) and head == whole[: p.count]
    return api.Finding(
        f"take({p.count}) has {len(head)} rows and skip({p.count}) {len(tail)} of {len(whole)}: "
        f"{len(again)} are in both, {len(never)} in none",
        ranks=records.ranks,
        magnitude=len(again) / max(len(head), 1),
        unit="of the rows of take(n) are in skip(n), too",
        documented=sound and start >= 0 and tail == whole[start:],
    )


def exercised(records: api.Records) -> api.Exercise:
    """skip() had to skip at least the first table."""
    p = records.params
    text = f"skip({p.count}) on {p.tables} tables of {p.rows // p.tables} rows"
    return api.Exercise.of(p.count >= (p.rows // p.tables), text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks of one part, and of missing rows, and whether they fired."""
    split = records.of("split")
    return {
        "a row comes twice in a part": any(
            len(set(one[part])) < len(one[part]) for one in split for part in ("taken", "left")
        ),
        "a row is in no part": any(set(s["whole"]) - {*s["taken"], *s["left"]} for s in split),
    }


def _parts(records: api.Records) -> Iterator[tuple[int, str, str]]:
    """In which part each row is."""
    for split in records.of("split", 0):
        for row in split["whole"]:
            parts = [name for name, part in PARTS.items() if row in split[part]]
            yield row, "", " and ".join(parts) or "none"


PARTS = {"take(n)": "taken", "skip(n)": "left"}
picture = api.grid(
    "Which rows are in take(n), and which in skip(n)",
    "with the bug, skip(n) has rows that take(n) has, too",
    _parts,
    x="row",
    value="part",
    wrong=("take(n) and skip(n)", "none"),
)
