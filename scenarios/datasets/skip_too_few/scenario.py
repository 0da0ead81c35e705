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
from dataclasses import dataclass

from harness.bugs import api


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(40, least=4, about="number of rows in the stream")
    tables: int = api.knob(4, least=1, about="number of Arrow tables of equal length")
    count: int = api.knob(15, least=1, unit="rows", about="how many are skipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows % self.tables:
            raise ValueError("scenario.tables must divide scenario.rows")
        if self.count >= self.rows:
            raise ValueError("scenario.count must be below scenario.rows")

    @property
    def table(self) -> int:
        """The rows of a table."""
        return self.rows // self.tables


SCENARIO = api.Scenario(
    report=(
        "Fix iterable skip over full Arrow blocks",
        "https://github.com/huggingface/datasets/pull/8236",
    ),
    fix="https://github.com/huggingface/datasets/pull/8236",
    symptom="skipped rows appear in the output of IterableDataset.skip(n)",
    trigger="skip(n) on a stream that reads Arrow tables, with n of at least the rows of the first "
    "table",
    remedy="put map(lambda row: row) before skip()",
    pins={"datasets": "4.8.5"},
    harm="ruins training",
    visibility="silent",
    lanes=(api.Lane.CPU,),
    settings={"code": api.by_code("a streaming dataset of Arrow tables skips a table or more")},
    files=("datasets/iterable_dataset.py",),
    ranks=1,
    absent=(
        api.Absent(
            "datasets>=2,<2.12",
            "skip() reads the rows one by one",
            "https://github.com/huggingface/datasets/blob/2.3.2/src/datasets/iterable_dataset.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.0.0"),
        "control": api.control("4.8.5, the stream has one table", params={"tables": 1}),
        "table": api.expect_symptom(
            about="4.8.5, skip() of exactly one table skips nothing", params={"count": 10}
        ),
        "tables": api.expect_symptom(
            about="4.8.5, skip() of several tables skips one", params={"count": 30}
        ),
    },
)
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
    start = min(p.count - p.table, p.table)
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
    text = f"skip({p.count}) on {p.tables} tables of {p.table} rows"
    return api.Exercise.of(p.count >= p.table, text)


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
