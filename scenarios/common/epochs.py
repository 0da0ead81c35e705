"""Did each row of an epoch come once, in an order that depends on seed and epoch, also resumed?

``rows`` has the records; the records ``reseeded`` are the same epochs with another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.bugs import api
from scenarios.common.rows import SEEN, WORDS, Ranks, by_epoch, missed, resumed, together

NEVER, TWICE, UNEVEN = "never", "twice", "uneven"
UNSHUFFLED, REPEATED, SEEDLESS, MOVED = "unshuffled", "repeated", "seedless", "moved"
UNITS = {
    NEVER: "of the epoch's rows seen by nobody",
    TWICE: "of the epoch's rows seen again",
    UNEVEN: "of the rows that each rank should have",
    UNSHUFFLED: "of the epochs are not shuffled",
    REPEATED: "of the epochs repeat an order",
    SEEDLESS: "of the epochs do not depend on the seed",
    MOVED: "of the epoch's rows come at another place",
}
"""What can be wrong with the rows of an epoch, and the unit of its size."""


class Fault(NamedTuple):
    """What is wrong with the rows of an epoch."""

    name: str
    """One of ``UNITS``."""
    epoch: int
    after_resume: bool
    size: float
    text: str


Judge = Callable[[Sequence[Fault], api.Records], bool]
"""Whether these faults, of which there is at least one, are the documented symptom."""


def often(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of how often each row came in each epoch; in a stopped run, from the stop on."""
    yield api.Grid(
        "How often each row came in each epoch",
        "with the bug some rows come twice or never",
        [
            (variant, row, epoch, WORDS.get(together(ranks).count(row), "twice"))
            for variant, records in trials.items()
            for epoch, ranks in (resumed(records) or by_epoch(records)).items()
            for row in range(records.params.rows)
        ],
        x="row",
        y="epoch",
        value="came",
        wrong=("never", "twice"),
    )


def in_order(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of which row came at which place of each epoch on rank 0."""
    yield api.Grid(
        "Which row came at which place",
        "with the bug the order is not that of a shuffled epoch",
        [
            (variant, place, epoch, row)
            for variant, records in trials.items()
            for epoch, ranks in (resumed(records) or by_epoch(records)).items()
            for place, row in enumerate(ranks[0], 1)
        ],
        x="place",
        y="epoch",
        value="row",
    )


@dataclass(frozen=True)
class Epochs:
    """The oracle of scenarios whose epochs do not have each row once, or have a wrong order. The
    parameters ``rows`` and ``epochs`` are the numbers of rows and epochs."""

    documented: Judge
    """Its docstring is the symptom on the bug's page."""
    spare: Callable[[api.Records], int] = lambda records: 0
    """How many rows an epoch may leave out."""
    shuffled: bool = False
    """Whether each epoch should have an order of its own."""
    reseeded: bool = False
    """Whether the epochs were read with another seed, too, which should give other orders."""
    stop: Callable[[Any], int] = lambda params: 0
    """The epoch of the stop, from 1, by the parameters; 0 is a run without a stop."""
    also: Callable[[api.Position], api.Plan] = lambda at: {}
    """What the scenario records besides the rows."""
    checks: Sequence[api.Check] = ()
    """Checks that miss the bug."""
    picture: api.Pictures = often

    def plan(self, at: api.Position) -> api.Plan:
        """The rows of each epoch; in a stopped run, also the rows before and after the stop."""
        stop, epochs = self.stop(at.params), api.each(at.params.epochs)
        kinds: dict[str, Sequence[int]] = {"epoch": epochs}
        if self.reseeded:
            kinds["reseeded"] = epochs
        if stop:
            kinds |= {"before": (stop,), "after": epochs[stop - 1 :]}
        rows = {kind: api.Kind(SEEN, steps) for kind, steps in kinds.items()}
        return {**rows, **self.also(at)}

    def faults(self, records: api.Records) -> list[Fault]:
        """All that is wrong with the rows."""
        epochs, stopped = by_epoch(records), resumed(records)
        faults = [
            *self._uncovered(epochs, records),
            *self._uncovered(stopped, records, resumed=True),
        ]
        for epoch, after in by_epoch(records, "after").items():
            if len(after) == len(epochs[epoch]):
                faults += _misplaced(epoch, stopped[epoch], epochs[epoch])
        if self.shuffled:
            faults += _unshuffled(epochs)
        if self.reseeded:
            faults += _seedless(epochs, by_epoch(records, "reseeded"))
        return faults

    def _uncovered(
        self, epochs: Mapping[int, Ranks], records: api.Records, *, resumed: bool = False
    ) -> Iterator[Fault]:
        total, when = records.params.rows, "after the resume, " if resumed else ""
        shares = by_epoch(records, "after") if resumed else epochs
        for epoch, ranks in epochs.items():
            draws, lengths = together(ranks), list(map(len, shares[epoch]))
            never, again = total - len(set(draws)), len(draws) - len(set(draws))
            text = f"{when}epoch {epoch}: {missed(ranks, total)}"
            if never > self.spare(records) or not set(draws) <= set(range(total)):
                yield Fault(NEVER, epoch, resumed, never / total, text)
            if again:
                yield Fault(TWICE, epoch, resumed, again / total, text)
            if max(lengths) - min(lengths) > 1:  # one more, if the rows do not divide by the ranks
                text = f"{when}epoch {epoch}: the ranks have {', '.join(map(str, lengths))} rows"
                yield Fault(UNEVEN, epoch, resumed, max(lengths) / max(min(lengths), 1) - 1, text)

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that an epoch does not have each row once, or has a wrong order."""
        faults = self.faults(records)
        if not faults:
            return None
        worst = next(name for name in UNITS if any(fault.name == name for fault in faults))
        return api.Finding(
            "\n".join(dict.fromkeys(fault.text for fault in faults)),
            step=min(fault.epoch for fault in faults),
            ranks=records.ranks,
            magnitude=max(fault.size for fault in faults if fault.name == worst),
            unit=UNITS[worst],
            clock="epoch",
            documented=self.documented(faults, records),
        )

    def insufficient_checks(self, records: api.Records) -> dict[str, bool]:
        """The checks that miss this bug, and whether they fired."""
        return api.together(*self.checks)(records)


def _misplaced(epoch: int, ranks: Ranks, expected: Ranks) -> Iterator[Fault]:
    """The fault that rows of a resumed epoch come at another place than without a stop. Both runs
    have the same number of ranks. An epoch with other rows is another fault."""
    if sorted(together(ranks)) != sorted(together(expected)):
        return
    pairs = zip(together(ranks), together(expected), strict=True)
    count = sum(mine != its for mine, its in pairs)
    if count or list(map(len, ranks)) != list(map(len, expected)):
        total = len(together(expected))
        text = (
            f"after the resume, epoch {epoch}: {count} of {total} rows come at another place than "
            "without a stop"
        )
        yield Fault(MOVED, epoch, True, count / total, text)


def _unshuffled(epochs: Mapping[int, Ranks]) -> Iterator[Fault]:
    """The epochs in which each rank has its rows in ascending order, and those that repeat another
    epoch."""
    earlier: dict[tuple[tuple[int, ...], ...], int] = {}
    for epoch, ranks in epochs.items():
        order = tuple(map(tuple, ranks))
        share = 1 / len(epochs)
        if all(list(rows) == sorted(rows) for rows in ranks):
            text = f"epoch {epoch} has the rows in the order of the dataset"
            yield Fault(UNSHUFFLED, epoch, False, share, text)
        if order in earlier:
            text = f"epoch {epoch} has the order of epoch {earlier[order]}"
            yield Fault(REPEATED, epoch, False, share, text)
        earlier.setdefault(order, epoch)


def _seedless(epochs: Mapping[int, Ranks], others: Mapping[int, Ranks]) -> Iterator[Fault]:
    """The epochs that have the same order with another seed."""
    for epoch, ranks in epochs.items():
        if ranks == others[epoch]:
            text = f"epoch {epoch} has the same order with another seed"
            yield Fault(SEEDLESS, epoch, False, 1 / len(epochs), text)


def names(faults: Sequence[Fault]) -> set[str]:
    """The names of the faults."""
    return {fault.name for fault in faults}


def another_number(records: api.Records) -> dict[str, bool]:
    """Other rows may come instead."""
    differs = any(len(together(ranks)) != records.params.rows for ranks in _epochs(records))
    return {"the number of rows in an epoch is not the dataset's": differs}


def row_twice(records: api.Records) -> dict[str, bool]:
    """Rows may be missing, or the order may be wrong."""
    twice = any(len(set(rows)) < len(rows) for ranks in _epochs(records) for rows in ranks)
    return {"a rank sees a row twice in an epoch": twice}


def other_lengths(records: api.Records) -> dict[str, bool]:
    """All ranks may miss rows."""
    uneven = any(len(set(map(len, ranks))) > 1 for ranks in _epochs(records))
    return {"the ranks have unequal numbers of rows": uneven}


def _epochs(records: api.Records) -> list[Ranks]:
    return [*by_epoch(records).values(), *resumed(records).values()]
