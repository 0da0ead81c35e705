"""Did each row of an epoch come once?

``rows`` has the records. ``orders`` judges the order of rows, ``stops`` stopped and resumed runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from harness.bugs import api
from scenarios.common.rows import SEEN, Ranks, by_epoch, missed, resumed, together


class Unit(Enum):
    """The unit of a fault's size, which says what is wrong with the rows; the worst comes first."""

    NEVER = "of the epoch's rows seen by nobody"
    TWICE = "of the epoch's rows seen again"
    UNEVEN = "of the rows that each rank should have"
    UNSHUFFLED = "of the epochs are not shuffled"
    REPEATED = "of the epochs repeat an order"
    SEEDLESS = "of the epochs do not depend on the seed"
    MOVED = "of the epoch's rows come at another place"


class Fault(NamedTuple):
    """What is wrong with the rows of an epoch."""

    unit: Unit
    epoch: int
    size: float
    text: str


def units(faults: Sequence[Fault]) -> set[Unit]:
    """The units of the faults, which say what is wrong."""
    return {fault.unit for fault in faults}


often = api.grid(
    "How often each row came in each epoch",
    "with the bug some rows come twice or never",
    lambda records: (
        (row, epoch, {0: "never", 1: "once"}.get(together(ranks).count(row), "twice"))
        for epoch, ranks in (resumed(records) or by_epoch(records)).items()
        for row in range(records.params.rows)
    ),
    x="row",
    y="epoch",
    value="came",
    wrong=("never", "twice"),
)
"""A picture of how often each row came in each epoch; in a stopped run, from the stop on."""


@dataclass(frozen=True)
class Epochs:
    """The oracle of scenarios whose epochs do not have each row once.

    The parameters ``rows`` and ``epochs`` are their numbers."""

    documented: Callable[[Sequence[Fault], api.Records], bool]
    """Whether faults are the documented symptom, which is its docstring on the bug's page."""
    orders: Sequence[Callable[[api.Records], Iterable[Fault]]] = ()
    """What is wrong with the order of the rows; see ``orders``."""
    spare: Callable[[api.Records], int] = lambda records: 0
    """How many rows an epoch may leave out."""
    checks: Sequence[api.Check] = ()
    """Checks that miss the bug."""
    picture: api.Pictures = often

    def plan(self, at: api.Position) -> api.Plan:
        """The rows of each epoch."""
        return {"epoch": api.Kind(SEEN, api.each(at.params.epochs))}

    def faults(self, records: api.Records) -> list[Fault]:
        """All that is wrong with the rows."""
        epochs = by_epoch(records)
        return [
            *uncovered(epochs, epochs, records.params.rows, self.spare(records)),
            *(fault for order in self.orders for fault in order(records)),
        ]

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that an epoch does not have each row once, or has a wrong order."""
        faults = self.faults(records)
        if not faults:
            return None
        worst = next(unit for unit in Unit if unit in units(faults))
        return api.Finding(
            "\n".join(dict.fromkeys(fault.text for fault in faults)),
            step=min(fault.epoch for fault in faults),
            ranks=records.ranks,
            magnitude=max(fault.size for fault in faults if fault.unit == worst),
            unit=worst.value,
            clock="epoch",
            documented=self.documented(faults, records),
        )


def uncovered(
    epochs: Mapping[int, Ranks], shares: Mapping[int, Ranks], total: int, spare: int, when: str = ""
) -> Iterator[Fault]:
    """The epochs in which over ``spare`` rows never come, rows come twice, or shares are uneven."""
    for epoch, ranks in epochs.items():
        draws, lengths = together(ranks), list(map(len, shares[epoch]))
        never, again = total - len(set(draws)), len(draws) - len(set(draws))
        text = f"{when}epoch {epoch}: {missed(ranks, total)}"
        if never > spare or not set(draws) <= set(range(total)):
            yield Fault(Unit.NEVER, epoch, never / total, text)
        if again:
            yield Fault(Unit.TWICE, epoch, again / total, text)
        if max(lengths) - min(lengths) > 1:  # one more, if the rows do not divide by the ranks
            text = f"{when}epoch {epoch}: the ranks have {', '.join(map(str, lengths))} rows"
            yield Fault(Unit.UNEVEN, epoch, max(lengths) / max(min(lengths), 1) - 1, text)


def another_number(records: api.Records) -> dict[str, bool]:
    """Other rows may come instead."""
    differs = any(len(together(ranks)) != records.params.rows for ranks in _all(records))
    return {"the number of rows in an epoch is not the dataset's": differs}


def row_twice(records: api.Records) -> dict[str, bool]:
    """Rows may be missing, or the order may be wrong."""
    twice = any(len(set(rows)) < len(rows) for ranks in _all(records) for rows in ranks)
    return {"a rank sees a row twice in an epoch": twice}


def other_lengths(records: api.Records) -> dict[str, bool]:
    """All ranks may miss rows."""
    uneven = any(len(set(map(len, ranks))) > 1 for ranks in _all(records))
    return {"the ranks have unequal numbers of rows": uneven}


def _all(records: api.Records) -> list[Ranks]:
    return [*by_epoch(records).values(), *resumed(records).values()]
