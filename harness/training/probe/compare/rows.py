"""The rows of a run by themselves: those that come twice, on all ranks, or in one order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from harness.system.text import count, listed
from harness.training.probe.compare import plausibility
from harness.training.probe.compare.reference import Reference, rows_of
from harness.training.probe.runner import Run, Step

ALIKE = (
    "all ranks are given the same rows: is a distributed sampler missing? Tensor parallelism needs "
    "--same-rows"
)


def all_alike(run: Run) -> str:
    """The message that all ranks have the same rows; empty if they have not."""
    rows, *others = (one[0]["rows"] for one in run.ranks)
    alike = any(rows) and others and all(other == rows for other in others)
    return ALIKE if alike else ""


def rows_again(run: Run, baseline: Reference) -> str:
    """How many rows come twice in the first epoch of the reference; empty for none.

    The last step of the epoch is left out, because samplers repeat rows there on purpose.
    """
    steps = _steps_of_one_epoch(baseline)
    rows = [row for one in run.ranks for step in one[:steps] for row in rows_of(step)]
    twice = len(rows) - len(set(rows))
    return f"in {steps} steps {twice} of {len(rows)} rows come again" if twice else ""


def same_epochs(run: Run, baseline: Reference) -> str:
    """The note that a layout's second epoch repeats its first; empty if the reference's does,
    too."""
    rows = ([rows_of(step) for step in steps] for steps in (run.ranks[0], baseline.steps))
    note, reference_note = (next(plausibility.same_order(steps), "") for steps in rows)
    return "" if reference_note else note


def rows_after_resume(run: Run, reference_steps: Sequence[Step]) -> str:
    """Which rows come after a resume: those of other steps, or how many were trained before the
    stop, and how many are skipped."""
    start = run.layout.first
    expected = [sorted(rows_of(step)) for step in reference_steps]
    steps = [
        sorted(row for step in ranks for row in rows_of(step))
        for ranks in zip(*run.ranks, strict=False)
    ]
    others = {
        number: expected.index(rows)
        for number, rows in enumerate(steps, start)
        if rows and rows in expected and rows not in expected[number : number + 1]
    }
    if others:
        return f"the rows of {_numbered(others)} are those of {_numbered(others.values())}"
    before, after = ({*chain(*part)} for part in (expected[:start], expected[start:]))
    rows = [*chain(*steps)]
    again = sum(row in before - after for row in rows)
    return (
        f"of {count(len(rows), 'row')} after the resume, {again} come again that were trained "
        f"before the stop; {len(after - {*rows})} that are trained without the stop do not come"
    )


def _numbered(steps: Iterable[int]) -> str:
    numbers = [str(step + 1) for step in steps]
    return f"step{'s' if len(numbers) > 1 else ''} {listed(numbers)}"


def _steps_of_one_epoch(baseline: Reference) -> int:
    earlier_rows: set[str] = set()
    for number, step in enumerate(baseline.steps):
        rows = rows_of(step)
        if earlier_rows & set(rows) or len(set(rows)) < len(rows):
            return max(number - 1, 0)
        earlier_rows |= set(rows)
    return len(baseline.steps)
