"""The rows as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypedDict

from harness.rank.models.answer import AnswerStatus, Row, RowJson
from harness.system import machine
from harness.system.errors import ExitCode
from harness.system.text import count, short
from harness.training.models.recorded import Changed
from harness.training.models.stack import Releases


class Changes(TypedDict):
    """The cells, each a model and a relation, that differ from a recorded release."""

    before: dict[str, str]
    broken: list[list[str]]
    new: list[list[str]]
    mended: list[list[str]]


class TableWithoutChanges(TypedDict):
    """What ``models --json`` writes."""

    schema: int
    releases: dict[str, str]
    torch: str
    python: str
    seconds: float
    counts: dict[str, dict[str, int]]
    """By relation, how many cells have each status."""
    rows: list[RowJson]


class Table(TableWithoutChanges, total=False):
    """The same; ``changes`` only with ``--changes``."""

    changes: Changes


SCHEMA = 2
"""The version of what ``models --json`` writes."""

REASON = 160
"""Characters of a reason in a line."""


def wrong_by_relation(rows: Sequence[Row]) -> Iterator[str]:
    """The wrong cells, by relation."""
    for relation in dict.fromkeys(row.relation for row in rows):
        wrong_rows = [
            r for r in rows if r.relation == relation and r.answer.status is AnswerStatus.WRONG
        ]
        if wrong_rows:
            models = count(sum(r.relation == relation for r in rows), "model")
            yield f"{relation}: wrong in {len(wrong_rows)} of {models}"
            yield from (f"  {row.model}: {short(row.answer.reason, REASON)}" for row in wrong_rows)


def by_model(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each cell."""
    width = max(len(row.relation) for row in rows)
    for model in dict.fromkeys(row.model for row in rows):
        yield model
        for row in rows:
            if row.model == model:
                answer = row.answer
                line = f"  {row.relation:<{width}}  {answer.status!s:<9}  {answer.reason}"
                yield short(line.rstrip(), REASON)


def changes(changed: Changed) -> Iterator[str]:
    """The cells that became wrong or right since a recorded release."""
    since = f"since transformers {changed.before.release}"
    for title, rows in (
        (f"became wrong {since}", changed.broken),
        (f"wrong, and not asked of transformers {changed.before.release}", changed.new),
        (f"fixed {since}", changed.mended),
    ):
        if rows:
            yield f"{title}: {count(len(rows), 'cell')}"
            for row in rows:
                yield short(
                    f"  {row.model} {row.relation}: {row.answer.reason}".rstrip(": "), REASON
                )
    if not (changed.broken or changed.new or changed.mended):
        yield f"nothing changed {since}"


def counted(rows: Sequence[Row], seconds: float) -> str:
    """One line with the number of cells of each status."""
    counts = {status: sum(r.answer.status is status for r in rows) for status in AnswerStatus}
    parts = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    models = count(len({row.model for row in rows}), "model")
    return f"{models}, {count(len(rows), 'cell')}: {parts} [{seconds:.0f} s]"


def as_json(
    rows: Sequence[Row], releases: Releases, seconds: float, changed: Changed | None = None
) -> Table:
    """The header and the rows."""
    facts = machine.facts()
    table: Table = {
        "schema": SCHEMA,
        "releases": dict(releases.packages),
        "torch": facts["torch"],
        "python": facts["python"],
        "seconds": round(seconds, 1),
        "counts": {
            relation: {
                str(status): sum((r.relation, r.answer.status) == (relation, status) for r in rows)
                for status in AnswerStatus
            }
            for relation in dict.fromkeys(row.relation for row in rows)
        },
        "rows": [row.to_json() for row in rows],
    }
    if changed:
        table["changes"] = {
            "before": dict(changed.before.packages),
            "broken": _names(changed.broken),
            "new": _names(changed.new),
            "mended": _names(changed.mended),
        }
    return table


def _names(rows: Iterable[Row]) -> list[list[str]]:
    return [[row.model, row.relation] for row in rows]


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a cell is wrong, 3 if none has an answer, otherwise 0."""
    statuses = {row.answer.status for row in rows}
    if AnswerStatus.WRONG in statuses:
        return ExitCode.NOT_AS_EXPECTED
    return ExitCode.INCONCLUSIVE if statuses <= {AnswerStatus.NO_ANSWER} else ExitCode.AS_EXPECTED
