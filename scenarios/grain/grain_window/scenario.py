"""After a resume, each window of grain's WindowShuffleIterDataset has the order of the one before.

This affects users who shuffle a stream of grain's by windows and load the state of its iterator
into a new process. The window in which the run was stopped is continued right. From the next window
on, the rows come in another order than in a run without a stop, so that the resumed run is not the
one that was stopped. No row is lost, and none comes twice.

Root cause: the order of a window is drawn from the seed and the number of the window. The iterator
increases that number when it fills a window, but not for its first one, and a flag says which one
that is. A new iterator has this flag set, also after ``set_state``. So the first new window after
the resume gets the number of the window before, and all later ones are one behind. The fix
increases the number when a window is empty, and needs no flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, orders, rows, stops


def windows(records: api.Records, order: Sequence[int]) -> list[Sequence[int]]:
    """The windows of a rank's rows."""
    size = records.params.window
    return [order[start : start + size] for start in range(0, len(order), size)]


def later_windows(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """After the resume the rows come in another order. On each rank the windows have their right
    rows, and the order is right up to the end of the window of the stop."""
    whole, stopped = rows.by_epoch(records)[1], rows.resumed(records)[1]
    count = records.params.before // records.params.window + 1
    for expected, order in zip(whole, stopped, strict=True):
        pairs = list(zip(windows(records, expected), windows(records, order), strict=True))
        other_rows = any(sorted(mine) != sorted(its) for mine, its in pairs)
        if other_rows or any(mine != its for mine, its in pairs[:count]):
            return False
    return epochs.units(faults) == {epochs.Unit.MOVED} and {fault.epoch for fault in faults} == {1}


oracle = stops.Stopped(
    later_windows,
    orders=(orders.unshuffled,),
    checks=(epochs.another_number, epochs.row_twice),
    picture=orders.in_order,
)


def run(ctx: api.Context) -> None:
    """Read epochs without a stop; read some rows, load the state into a new iterator, go on."""
    import copy

    import grain.python as grain

    p = ctx.params

    def shuffled(epoch: int) -> Any:
        part = grain.MapDataset.source(list(range(p.rows)))[ctx.rank :: ctx.world_size]
        stream = grain.experimental.WindowShuffleIterDataset(
            part.to_iter_dataset(), window_size=p.window, seed=ctx.seed + 100 * epoch
        )
        return iter(stream)

    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=list(shuffled(epoch)))
    stopped, resumed = shuffled(1), shuffled(1)
    ctx.record("before", 1, seen=[next(stopped) for _ in range(p.before)])
    if p.begun:
        next(resumed)
    resumed.set_state(copy.deepcopy(stopped.get_state()))
    for epoch in api.each(p.epochs):
        ctx.record("after", epoch, seen=list(resumed if epoch == 1 else shuffled(epoch)))


def exercised(records: api.Records) -> api.Exercise:
    """The stream was stopped before its last window."""
    p = records.params
    share = p.rows // len(records.ranks)
    text = f"stopped after {p.before} of {share} rows of a rank, in windows of {p.window}"
    return api.Exercise.of(p.before < share - p.window, text)
