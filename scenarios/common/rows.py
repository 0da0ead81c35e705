"""The rows that ranks were given, epoch by epoch.

A record ``epoch`` has the rows of a rank in one epoch of a run without a stop, by number and in
order (``seen``); its step is the epoch, from 1. In a run that was stopped, ``before`` has the rows
of the last epoch before the stop, and ``after`` those of the rest of that epoch, and of the epochs
behind it. The ranks together must have each row once: a resume may have another number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from harness.bugs import api

SEEN = {"seen": api.many(api.COUNT)}
"""The facts of each record."""

Ranks = Sequence[Sequence[int]]
"""The rows of an epoch, by rank."""


def by_epoch(records: api.Records, kind: str = "epoch") -> dict[int, Ranks]:
    """The rows of the records of a kind, by epoch and rank."""
    epochs: dict[int, list[Sequence[int]]] = {}
    for record in records.of(kind):
        epochs.setdefault(record["step"], []).append(record["seen"])
    return dict(epochs)


def resumed(records: api.Records) -> dict[int, Ranks]:
    """The epochs of the stopped run from the stop on; the first has rows from before it, too."""
    before, after = by_epoch(records, "before"), by_epoch(records, "after")
    return {
        epoch: [[*a, *b] for a, b in zip_longest(before.get(epoch, ()), ranks, fillvalue=())]
        for epoch, ranks in after.items()
    }


def together(ranks: Ranks) -> list[int]:
    """The rows of all ranks, or of other parts."""
    return list(chain.from_iterable(ranks))


def missed(ranks: Ranks, total: int, noun: str = "rows") -> str:
    """How many of the ``total`` rows came, and how often, in words."""
    draws, different = together(ranks), len(set(together(ranks)))
    return (
        f"{different} of {total} {noun} seen, in {len(draws)} draws: "
        f"{total - different} never, {len(draws) - different} a second time"
    )
