"""Were there as many micro-batches in each step as the parameter ``accumulation`` requests?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied


@dataclass(frozen=True)
class Step(applied.Step):
    micro_batches: api.Count
    """How many this rank had."""


def accumulated(records: api.Records, counts: Sequence[int]) -> api.Exercise:
    """Each step of the optimizer came after several micro-batches: as many as were requested.

    ``counts`` has the number of each step."""
    requested, numbers = records.params.accumulation, sorted(set(counts))
    text = f"{len(counts)} updates came after {', '.join(map(str, numbers))} micro-batches each"
    return api.Exercise.needs(requested > 1, "no accumulation was requested") & api.Exercise.of(
        numbers == [requested], text, f"{text}, but {requested} were requested"
    )


def divided(records: api.Records, counts: Sequence[int]) -> api.Exercise:
    """Several ranks or several micro-batches made each step, as many as were requested.

    ``counts`` has the number of micro-batches of a rank in each step."""
    requested, ranks, numbers = records.params.accumulation, len(records.ranks), sorted(set(counts))
    text = f"{len(counts)} records of steps with {requested} micro-batches on each of {ranks} ranks"
    return api.Exercise.needs(
        requested * ranks > 1, "one micro-batch on one rank"
    ) & api.Exercise.of(
        numbers == [requested], text, f"the steps had {numbers} micro-batches, not {requested}"
    )
