"""Has each epoch an order of its own, which depends on the seed? These are faults of ``epochs``."""

from __future__ import annotations

from collections.abc import Iterator

from harness.bugs import api
from scenarios.common.epochs import Fault, Unit
from scenarios.common.rows import by_epoch, resumed

in_order = api.grid(
    "Which row came at which place",
    "with the bug the order is not that of a shuffled epoch",
    lambda records: (
        (place, epoch, row)
        for epoch, ranks in (resumed(records) or by_epoch(records)).items()
        for place, row in enumerate(ranks[0], 1)
    ),
    x="place",
    y="epoch",
    value="row",
)
"""A picture of which row came at which place of each epoch on rank 0."""


def unshuffled(records: api.Records) -> Iterator[Fault]:
    """The epochs with the order of the dataset, and those with the order of another epoch."""
    earlier: dict[tuple[tuple[int, ...], ...], int] = {}
    epochs = by_epoch(records)
    for epoch, ranks in epochs.items():
        order = tuple(map(tuple, ranks))
        if all(list(rows) == sorted(rows) for rows in ranks):
            text = f"epoch {epoch} has the rows in the order of the dataset"
            yield Fault(Unit.UNSHUFFLED, epoch, 1 / len(epochs), text)
        if order in earlier:
            text = f"epoch {epoch} has the order of epoch {earlier[order]}"
            yield Fault(Unit.REPEATED, epoch, 1 / len(epochs), text)
        earlier.setdefault(order, epoch)
