"""Which rows did a Trainer train on that was stopped and resumed? ``_resumed_loop`` trains it.

A rank records ``order``, the numbers of the ``rows`` in the order in which they came, in each of
the launches ``whole`` (without a stop), ``save`` and ``resume``.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import resumed_epoch

BATCH = 4
"""Rows of a step; ``loop.BATCH``."""

Epochs = list[list[int]]


def orders(records: api.Records) -> tuple[Epochs, Epochs]:
    """The rows by epoch of the run without a stop, and those of the stopped and resumed run."""
    whole, save, resume = (record["rows"] for record in records.of("order"))
    size = records.params.rows

    def by_epoch(order: list[int]) -> Epochs:
        return [order[start : start + size] for start in range(0, len(order), size)]

    return by_epoch(whole), by_epoch([*save, *resume])


def stop(records: api.Records) -> tuple[int, int]:
    """The epoch of the resume, from 0, and how many of its rows came before it."""
    epoch, rows_done = divmod(records.params.stop * BATCH, records.params.rows)
    return epoch, rows_done


def _of_resume(records: api.Records) -> list[int]:
    """The rows that came in the epoch of the resume."""
    return orders(records)[1][stop(records)[0]]


def another_number(records: api.Records) -> dict[str, bool]:
    """The number of rows is right, so it does not show the bug."""
    whole, stopped = orders(records)
    return {"another number of rows": sum(map(len, whole)) != sum(map(len, stopped))}


@dataclass(frozen=True)
class Resumed:
    """The oracle of scenarios in which a resumed run gets other rows; each judges them itself."""

    checks: tuple[api.Check, ...] = (another_number,)
    """Checks that miss the bug."""
    picture = staticmethod(resumed_epoch.how_often(_of_resume))

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """The rows of each launch, in the order in which they were trained on."""
        p = at.params
        total = p.rows * p.epochs
        counts = {"whole": total, "save": p.stop * BATCH, "resume": total - p.stop * BATCH}
        return {"order": api.Kind({"rows": api.many(api.COUNT, counts[at.launch])})}
