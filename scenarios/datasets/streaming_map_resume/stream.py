"""Does a resumed stream yield every row exactly once?

A record ``resume`` has the numbers of the rows ``before`` a checkpoint, of those ``after`` it, and
of the ``whole`` stream without a checkpoint. ``marks`` has the different numbers of times that the
transform was applied to a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api

BATCH = 4
"""Rows of a batch in a batched map()."""

_ROWS = api.many(api.COUNT)


def plan(at: api.Position) -> api.Plan:
    """The rows before the checkpoint, after it, and those of a run without a checkpoint."""
    before = api.many(api.COUNT, at.params.before)
    rows = {"before": before, "after": _ROWS, "whole": _ROWS, "marks": _ROWS}
    return {"resume": api.Kind(rows)}


def _ends(params: Any) -> list[int]:
    """Where the tables end. They have equal lengths, or the first ones have one row more."""
    size, longer = divmod(params.rows, params.shards)
    return [size * n + min(n, longer) for n in range(1, params.shards + 1)]


def skipped(records: api.Records) -> api.Finding | None:
    """The rows before and after the checkpoint are not those of a run without one.

    That is documented if the stream continues at the end of a table, or within a batch behind it.
    """
    seen = records.one("resume")
    if seen is None:
        return None
    wrong = "\n".join(_stream_wrong(seen, records.params))
    if wrong:
        return api.Finding(wrong, ranks=records.ranks, clock="row", documented=False)
    if seen["before"] + seen["after"] == seen["whole"]:
        return None
    batch = BATCH if records.params.transform == "batched" else 0
    start = len(seen["whole"]) - len(seen["after"])
    begun = seen["before"] == seen["whole"][: len(seen["before"])]
    jumped = begun and any(0 <= start - end <= batch for end in _ends(records.params))
    never = sorted(set(seen["whole"]) - set(seen["before"]) - set(seen["after"]))
    twice = sorted(set(seen["before"]) & set(seen["after"]))
    return api.Finding(
        message=_message(seen, never, twice),
        step=len(seen["before"]),
        ranks=records.ranks,
        magnitude=len(never) / len(seen["whole"]),
        unit="of all rows seen by nobody",
        clock="row",
        documented=bool(never) and jumped and seen["after"] == seen["whole"][start:],
    )


def _stream_wrong(seen: api.Record, params: Any) -> Iterator[str]:
    """What is wrong with the stream even without a resume."""
    whole, rows = seen["whole"], params.rows
    if whole != list(range(rows)):
        there = len(set(whole) & set(range(rows)))
        yield f"without a resume {there} of {rows} rows came, in {len(whole)} draws or out of order"
    mark = int(params.transform in ("map", "batched"))
    if seen["marks"] != [mark]:
        times = ", ".join(map(str, seen["marks"]))
        yield f"the transform {params.transform} was applied {times} times, not {mark}"


def _message(seen: api.Record, never: Sequence[int], twice: Sequence[int]) -> str:
    place, total = len(seen["before"]), len(seen["whole"])
    if not never:
        return (
            f"resumed after {place} of {total} rows: {len(twice)} are seen twice, or out of order"
        )
    came = seen["after"][0] if seen["after"] else "none"
    return (
        f"resumed after {place} of {total} rows: {len(never)} rows are never seen ({never[0]} to "
        f"{never[-1]}), {len(twice)} are seen twice; the next row is {came} instead of "
        f"{seen['whole'][place]}"
    )


def resumed(records: api.Records) -> api.Exercise:
    """The stream was resumed in the middle: rows had come, and rows were left."""
    seen = records.one("resume")
    if seen is None:
        return api.Exercise(False, "nothing was resumed")
    before, total = len(seen["before"]), len(seen["whole"])
    return api.Exercise.of(
        0 < before < total,
        f"the stream was resumed after {before} of {total} rows",
        f"the stream was resumed after {before} of {total} rows: not in the middle",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks for rows that come twice, or for no rows at all, and whether they fired."""
    seen = records.of("resume")
    return {
        "a row comes twice": any(set(s["before"]) & set(s["after"]) for s in seen),
        "nothing comes after a resume": any(not s["after"] for s in seen),
    }


def _came(records: api.Records) -> Iterator[tuple[int, str, str]]:
    """Whether each row came before the checkpoint, after it, twice or never."""
    words = {(True, False): "before", (False, True): "after", (True, True): "twice"}
    for seen in records.of("resume", 0):
        before, after = set(seen["before"]), set(seen["after"])
        for row in range(records.params.rows):
            yield row, "", words.get((row in before, row in after), "never")


picture = api.grid(
    "Which rows came before the checkpoint and after it",
    "with the bug, the rest of the table in which the stream was stopped never comes",
    _came,
    x="row",
    value="came",
    wrong=("never", "twice"),
)
