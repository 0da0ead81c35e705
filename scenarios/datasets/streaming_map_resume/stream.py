"""Does a resumed stream bring every row once?

A record ``resume`` has the rows ``before`` a checkpoint, those ``after`` it, and the ``whole`` of a
run that goes on; how many ``rows`` there are, where the ``tables`` that they come in end, and
``marks``: how often the ``transform`` was applied to them, where that is to be ``mark`` times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.facts.plan import Kind, Plan
from harness.facts.shapes import COUNT, Facts, exactly, many
from harness.pictures import Grid, Picture
from harness.spec import Exercise, Finding, Record, Records, Trials

_ROWS = many(COUNT)


def plan(before: int, **told: Any) -> Plan:
    """A record ``resume`` after so many rows; ``told`` is all that is known of it beforehand."""
    rows: Facts = {"before": many(COUNT, before), "after": _ROWS, "whole": _ROWS, "marks": _ROWS}
    return {"resume": Kind({**rows, **{name: exactly(value) for name, value in told.items()}})}


def skipped(records: Records) -> Finding | None:
    """The rows before the checkpoint and after it are not those of a run that goes on.

    Documented where it goes on at, or within a batch behind, the end of a table.
    """
    seen = records.one("resume")
    if seen is None:
        return None
    wrong = "\n".join(_stream_wrong(seen))
    if wrong:
        return Finding(wrong, ranks=records.ranks, clock="row", documented=False)
    if seen["before"] + seen["after"] == seen["whole"]:
        return None
    place = len(seen["whole"]) - len(seen["after"])
    begun = seen["before"] == seen["whole"][: len(seen["before"])]
    jumped = begun and any(0 <= place - end <= seen["batch"] for end in seen["tables"])
    never = sorted(set(seen["whole"]) - set(seen["before"]) - set(seen["after"]))
    twice = sorted(set(seen["before"]) & set(seen["after"]))
    return Finding(
        message=_told(seen, never, twice),
        step=len(seen["before"]),
        ranks=records.ranks,
        magnitude=len(never) / len(seen["whole"]),
        unit="of all rows seen by nobody",
        clock="row",
        documented=bool(never) and jumped and seen["after"] == seen["whole"][place:],
    )


def _stream_wrong(seen: Record) -> Iterator[str]:
    """What is wrong with the stream itself, resumed or not."""
    whole, rows = seen["whole"], seen["rows"]
    if whole != list(range(rows)):
        there = len(set(whole) & set(range(rows)))
        yield f"without a resume {there} of {rows} rows came, in {len(whole)} draws or out of order"
    if seen["marks"] != [seen["mark"]]:
        times = ", ".join(map(str, seen["marks"]))
        yield f"the transform {seen['transform']} was applied {times} times, not {seen['mark']}"


def _told(seen: Record, never: Sequence[int], twice: Sequence[int]) -> str:
    place, total = len(seen["before"]), len(seen["whole"])
    if not never:
        return (
            f"resumed after {place} of {total} rows: {len(twice)} are seen twice, or out of order"
        )
    came = seen["after"][0] if seen["after"] else "none"
    return (
        f"resumed after {place} of {total} rows: {len(never)} rows are never seen ({never[0]} to "
        f"{never[-1]}), {len(twice)} are seen twice; the next row that came is {came}, and not "
        f"{seen['whole'][place]}"
    )


def resumed(records: Records) -> Exercise:
    """It was resumed in the middle: rows had come, and rows were left."""
    seen = records.one("resume")
    if seen is None:
        return Exercise(False, "nothing was resumed")
    before, total = len(seen["before"]), len(seen["whole"])
    return Exercise.of(
        0 < before < total,
        f"it was resumed after {before} of {total} rows",
        f"it was resumed after {before} of {total} rows: not in the middle",
    )


def blind(records: Records) -> dict[str, bool]:
    """What looks for rows that come twice, or for none at all, and whether it fired."""
    seen = records.of("resume")
    return {
        "a row comes twice": any(set(s["before"]) & set(s["after"]) for s in seen),
        "nothing comes after a resume": any(not s["after"] for s in seen),
    }


def around_resume(trials: Trials) -> Iterator[Picture]:
    """A picture of which rows came before a checkpoint, after it, twice or never."""
    fields: list[tuple[str, int, str, str]] = []
    for variant, records in trials.items():
        for seen in records.of("resume", 0):
            before, after = set(seen["before"]), set(seen["after"])
            words = {(True, False): "before", (False, True): "after", (True, True): "twice"}
            fields += [
                (variant, row, "", words.get((row in before, row in after), "never"))
                for row in range(seen["rows"])
            ]
    yield Grid(
        "Which rows came before the checkpoint and after it",
        "with the bug the rest of the table in which the stream was stopped never comes",
        fields,
        "row",
        "",
        "came",
        wrong=("never", "twice"),
    )
