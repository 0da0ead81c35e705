"""Rows of a distributed sampler that is resumed within an epoch, beside those without a stop.

A rank records its ``epochs``: the launch ``whole`` up to the epoch of the save, ``save`` up to the
save, and ``resume`` the rest of that epoch. ``p.epoch`` counts from 0, ``p.before`` are batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import resumed_epoch

BATCH = 2
"""Rows of a batch of a rank."""


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.before * BATCH * 2 >= params.rows:
        raise ValueError("scenario.before must leave rows in the epoch")


def _of(records: api.Records, rank: int) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """The epochs of a rank without a stop and up to the save, and its rows after the resume."""
    whole, saved, resumed = (one["rows"] for one in records.of("epochs", rank))
    return whole, saved, resumed[0]


def another_order(records: api.Records) -> api.Exercise:
    """The epoch of the resume has another order than epoch 0."""
    whole = [_of(records, rank)[0] for rank in records.ranks]
    differ = all(epochs[0] != epochs[-1] for epochs in whole)
    return api.Exercise.needs(differ, "the epoch has the order of epoch 0")


def _came(records: api.Records) -> list[int]:
    """The rows that came in the epoch of the resume, on all ranks."""
    parts = [_of(records, rank) for rank in records.ranks]
    return [row for _, saved, rest in parts for row in [*saved[-1], *rest]]


@dataclass(frozen=True)
class Resumed:
    """The oracle of scenarios whose samplers replay the end of epoch 0 after a resume."""

    picture = staticmethod(resumed_epoch.how_often(_came))

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """The rows of a rank in each epoch of a launch, up to the epoch of the save."""
        return {"epochs": api.Kind({"rows": api.many(api.many(api.COUNT))})}

    @staticmethod
    def detect(records: api.Records) -> api.Finding | None:
        """After the resume each rank gets the end of epoch 0, where without a stop it gets the end
        of the epoch of the save."""
        p, offset = records.params, records.params.before * BATCH
        ranks, documented, union = [], True, set()
        for rank in records.ranks:
            whole, saved, tail = _of(records, rank)
            if saved != [*whole[:-1], whole[-1][:offset]]:
                why = "the epochs before the save differ"
                return api.Finding(why, ranks=(rank,), documented=False)
            union |= {*saved[-1], *tail}
            if tail != whole[-1][offset:]:
                ranks.append(rank)
                documented = documented and tail == whole[0][offset:]
        if not ranks:
            return None
        never = p.rows - len(union)
        return api.Finding(
            f"resumed after {offset * len(records.ranks)} of {p.rows} rows of epoch {p.epoch}: "
            f"{never} rows never came in that epoch",
            step=p.before,
            ranks=tuple(ranks),
            magnitude=never / p.rows,
            unit="of the epoch's rows seen by nobody",
            documented=documented and tuple(ranks) == records.ranks,
        )

    @staticmethod
    def insufficient_checks(records: api.Records) -> dict[str, bool]:
        """The number of rows after the resume is right, and none of them comes twice."""
        offset, size = records.params.before * BATCH, records.params.rows // len(records.ranks)
        tails = [_of(records, rank)[2] for rank in records.ranks]
        return {
            "another number of rows comes after the resume": any(
                len(r) != size - offset for r in tails
            ),
            "a row comes twice after the resume": any(len(set(r)) < len(r) for r in tails),
        }
