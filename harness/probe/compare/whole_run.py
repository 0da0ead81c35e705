"""The relations of whole runs: the rows of an epoch, evaluations, and the schedule's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.bugs.api.numbers import near
from harness.probe.compare.relations import Broken, meaning, times
from harness.probe.layouts import Layout
from harness.probe.runner import Run
from harness.rank.probe.schedules import HALF, LOWEST


def epoch(run: Run, reference: Run, same_rows: bool) -> Broken | None:
    """Whether all ranks together have seen the rows of the reference's epoch.

    Where the rows do not fill the last step, it may repeat rows, or be left out.
    """
    want = Counter(_rows(reference.seen[0][run.layout.first :]))
    ranks = run.seen[:1] if same_rows else run.seen
    seen = Counter(row for rank in ranks for row in _rows(rank))
    twice, never = seen - want, want - seen
    size = len(reference.seen[0][0])
    if want.total() % max(size, 1):
        twice -= Counter(row for rank in ranks for row in _last(rank))
        never = never if never.total() >= size else Counter()
    if not (twice or never):
        return None
    text = (
        f"over an epoch of {want.total()} rows, {twice.total()} come too often, and "
        f"{never.total()} never"
    )
    return Broken("samples", text)


def _rows(steps: Iterable[Iterable[str]]) -> list[str]:
    return [row for step in steps for row in step]


def _last(steps: list[list[str]]) -> list[str]:
    """The rows of the last step, and those after it, which no step has used."""
    return _rows(steps[-2:])


EVALUATION = "evaluation"

NEAR = 1e-2
"""How far (as a fraction) a loss may be from the reference's without a note: means of batches that
are divided otherwise differ by design."""


@dataclass(frozen=True)
class Loss:
    """A loss that rank 0 has reported, in a layout and in the reference."""

    steps: int
    name: str
    here: float
    there: float


def evaluation(run: Run, reference: Run) -> Broken | str | None:
    """The first loss of an evaluation that a mistake has multiplied, or a note on one that is just
    another one."""
    found = _losses(run, reference)
    for one in found:
        ratio = one.here / one.there if one.there else 1.0
        if words := meaning(ratio, run.layout.times, run.layout.k):
            text = f"{_described(one)}: {times(ratio, run.layout.times, run.layout.k)}"
            return Broken(EVALUATION, text, ratio, words)
    other = (one for one in found if not near(one.here, one.there, share=NEAR))
    return next((f"evaluation: {_described(one)}" for one in other), None)


def _described(one: Loss) -> str:
    return (
        f"after step {one.steps}, {one.name} is {one.here:.6g}; the reference has {one.there:.6g}"
    )


def _losses(run: Run, reference: Run) -> list[Loss]:
    """The losses that both have reported, after the same step and under the same name."""
    there = {(steps, name): loss for steps, name, loss in reference.reported[0]}
    first = run.layout.first
    return [
        Loss(first + steps, name, loss, there[first + steps, name])
        for steps, name, loss in run.reported[0]
        if (first + steps, name) in there
    ]


SCHEDULE = "schedule"

UNLIKE = 1.4
"""How many times as long a schedule is at least, if it is another one: a dataset that cannot be
divided by the rows of a step makes it a little longer or shorter."""


def schedule(here: Mapping[str, int], there: Mapping[str, int], layout: Layout) -> Broken | None:
    """Whether a layout's schedule has another length than the reference's.

    After a resume, the highest rate may have been before the stop: only the end is compared.
    """
    for what in (LOWEST,) if layout.resumed else (LOWEST, HALF):
        if not (what in here and what in there):
            continue
        longer = (here[what] + layout.first) / there[what]
        if max(longer, 1 / longer) >= UNLIKE:
            text = (
                f"the schedule falls to {what} after {here[what] + layout.first} steps, in the "
                f"reference after {there[what]}: {times(longer, layout.times, layout.k)}"
            )
            return Broken(SCHEDULE, text, longer)
    return None
