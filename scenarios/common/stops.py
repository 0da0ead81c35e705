"""Does a run that was stopped and resumed have the rows of one without a stop?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common.epochs import Epochs, Fault, Unit, uncovered
from scenarios.common.rows import SEEN, Ranks, by_epoch, resumed, together

_AFTER = "after the resume, "


@dataclass(frozen=True)
class Stopped(Epochs):
    """The oracle of scenarios in which a resumed run does not have the right rows."""

    stop: Callable[[Any], int] = lambda params: 1
    """The epoch of the stop, from 1, by the parameters; 0 is a run without a stop."""

    def plan(self, at: api.Position) -> api.Plan:
        """The rows of each epoch; in a stopped run, also the rows before and after the stop."""
        stop, epochs = self.stop(at.params), api.each(at.params.epochs)
        stopped = {"before": api.Kind(SEEN, (stop,)), "after": api.Kind(SEEN, epochs[stop - 1 :])}
        return {**super().plan(at), **(stopped if stop else {})}

    def faults(self, records: api.Records) -> list[Fault]:
        """All that is wrong with the rows, without a stop and after the resume."""
        epochs, stopped = by_epoch(records), resumed(records)
        faults, after = super().faults(records), by_epoch(records, "after")
        faults += uncovered(stopped, after, records.params.rows, self.spare(records), _AFTER)
        for epoch, ranks in after.items():
            if len(ranks) == len(epochs[epoch]):
                faults += _misplaced(epoch, stopped[epoch], epochs[epoch])
        return faults


def _misplaced(epoch: int, ranks: Ranks, expected: Ranks) -> Iterator[Fault]:
    """The fault that rows of a resumed epoch come at another place than without a stop. Both runs
    have the same number of ranks. An epoch with other rows is another fault."""
    if sorted(together(ranks)) != sorted(together(expected)):
        return
    pairs = zip(together(ranks), together(expected), strict=True)
    count, total = sum(mine != its for mine, its in pairs), len(together(expected))
    if count or list(map(len, ranks)) != list(map(len, expected)):
        text = f"epoch {epoch}: {count} of {total} rows come at another place than without a stop"
        yield Fault(Unit.MOVED, epoch, count / total, _AFTER + text)
