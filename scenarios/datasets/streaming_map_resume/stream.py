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
    """The rows before the checkpoint, after it, and of a run without a checkpoint."""
    before = api.many(api.COUNT, at.params.before)
    rows = {"before": before, "after": _ROWS, "whole": _ROWS, "marks": _ROWS}
    return {"resume": api.Kind(rows)}


def _ends(params: Any) -> list[int]:
    """Where the tables end. They have equal lengths, or the first ones have one row more."""
    size, longer = divmod(params.rows, params.shards)
    return [size * n + min(n, longer) for n in range(1, params.shards + 1)]


def skipped(records: api.Records) -> api.Finding | None:
    """The rows before and after the checkpoint differ from the rows of a run without one.

    This is documented if the stream continues at the end of a table, or at most a batch later.
    """
    resume = records.one("resume")
    if resume is None:
        return None
    problem = "\n".join(_stream_wrong(resume, records.params))
    if problem:
        return api.Finding(problem, ranks=records.ranks, clock="row", documented=False)
    if resume["before"] + resume["after"] == resume["whole"]:
        return None
    batch = BATCH if records.params.transform == "batched" else 0
    start = len(resume["whole"]) - len(resume["after"])
    begun = resume["before"] == resume["whole"][: len(resume["before"])]
    jumped = begun and any(0 <= start - end <= batch for end in _ends(records.params))
    never = sorted(set(resume["whole"]) - set(resume["before"]) - set(resume["after"]))
    twice = sorted(set(resume["before"]) & set(resume["after"]))
    return api.Finding(
        message=_message(resume, never, twice),
        step=len(resume["before"]),
        ranks=records.ranks,
        magnitude=len(never) / len(resume["whole"]),
        unit="of all rows seen by nobody",
        clock="row",
        documented=bool(never) and jumped and resume["after"] == resume["whole"][start:],
    )


def _stream_wrong(resume: api.Record, params: Any) -> Iterator[str]:
    """What is wrong with the stream even without a resume."""
    whole, rows = resume["whole"], params.rows
    if whole != list(range(rows)):
        count = len(set(whole) & set(range(rows)))
        yield f"without a resume {count} of {rows} rows came, in {len(whole)} draws or out of order"
    mark = int(params.transform in ("map", "batched"))
    if resume["marks"] != [mark]:
        times = ", ".join(map(str, resume["marks"]))
        yield f"the transform {params.transform} was applied {times} times, not {mark}"


def _message(resume: api.Record, never: Sequence[int], twice: Sequence[int]) -> str:
    place, total = len(resume["before"]), len(resume["whole"])
    if not never:
        return (
            f"resumed after {place} of {total} rows: {len(twice)} are seen twice, or out of order"
        )
    came = resume["after"][0] if resume["after"] else "none"
    return (
        f"resumed after {place} of {total} rows: {len(never)} rows are never seen ({never[0]} to "
        f"{never[-1]}), {len(twice)} are seen twice; the next row is {came} instead of "
        f"{resume['whole'][place]}"
    )


def resumed(records: api.Records) -> api.Exercise:
    """The stream was resumed in the middle: rows had come, and rows were left."""
    resume = records.one("resume")
    if resume is None:
        return api.Exercise(False, "nothing was resumed")
    before, total = len(resume["before"]), len(resume["whole"])
    return api.Exercise.of(
        0 < before < total,
        f"the stream was resumed after {before} of {total} rows",
        f"the stream was resumed after {before} of {total} rows: not in the middle",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks for rows that come twice, or for no rows at all, and whether they fired."""
    resumes = records.of("resume")
    return {
        "a row comes twice": any(set(s["before"]) & set(s["after"]) for s in resumes),
        "nothing comes after a resume": any(not s["after"] for s in resumes),
    }


def _came(records: api.Records) -> Iterator[tuple[int, str, str]]:
    """Whether each row came before the checkpoint, after it, twice or never."""
    words = {(True, False): "before", (False, True): "after", (True, True): "twice"}
    for resume in records.of("resume", 0):
        before, after = set(resume["before"]), set(resume["after"])
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
