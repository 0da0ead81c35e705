"""The relations of whole runs: the rows of an epoch, evaluations, and the schedule's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.bugs.api.numbers import near
from harness.rank.probe.schedules import HALF, LOWEST
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.mistakes import in_words, meaning
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run


def epoch(run: Run, reference: Run, same_rows: bool) -> Broken | None:
    """Whether all ranks together have seen the rows of the reference's epoch.

    Where the rows do not fill the last step, it may repeat rows, or be left out.
    """
    expected_rows = Counter(_rows(reference.seen[0][run.layout.first :]))
    ranks = run.seen[:1] if same_rows else run.seen
    rows = Counter(row for rank in ranks for row in _rows(rank))
    twice, never = rows - expected_rows, expected_rows - rows
    size = len(reference.seen[0][0])
    if expected_rows.total() % max(size, 1):
        twice -= Counter(row for rank in ranks for row in _rows_of_last_step(rank))
        never = never if never.total() >= size else Counter()
    if not (twice or never):
        return None
    text = (
        f"over an epoch of {expected_rows.total()} rows, {twice.total()} come too often, and "
        f"{never.total()} never"
    )
    return Broken("samples", text)


def _rows(steps: Iterable[Iterable[str]]) -> list[str]:
    return [row for step in steps for row in step]


def _rows_of_last_step(steps: list[list[str]]) -> list[str]:
    """The rows of the last step, and those after it, which no step has used."""
    return _rows(steps[-2:])


EVALUATION = "evaluation"

NEAR = 1e-2
"""How far (as a fraction) a loss may be from the reference's without a note: means of batches that
are divided otherwise differ by design."""


@dataclass(frozen=True)
class Loss:
    """A loss that rank 0 has reported in a layout."""

    steps: int
    name: str
    value: float
    expected: float
    """In the reference."""


def evaluation(run: Run, reference: Run) -> Broken | str | None:
    """The first loss of an evaluation that a known mistake multiplied; otherwise a note on the
    first one that differs."""
    losses = _losses(run, reference)
    for loss in losses:
        ratio = loss.value / loss.expected if loss.expected else 1.0
        if words := meaning(ratio, run.layout.rank_factor, run.layout.k):
            text = f"{_described(loss)}: {in_words(ratio, run.layout.rank_factor, run.layout.k)}"
            return Broken(EVALUATION, text, ratio, words)
    unlike_losses = (loss for loss in losses if not near(loss.value, loss.expected, share=NEAR))
    return next((f"evaluation: {_described(loss)}" for loss in unlike_losses), None)


def _described(loss: Loss) -> str:
    return (
        f"after step {loss.steps}, {loss.name} is {loss.value:.6g}; "
        f"the reference has {loss.expected:.6g}"
    )


def _losses(run: Run, reference: Run) -> list[Loss]:
    """The losses that both have reported, after the same step and under the same name."""
    reference_losses = {(steps, name): loss for steps, name, loss in reference.reported[0]}
    start = run.layout.first
    return [
        Loss(start + steps, name, loss, reference_losses[start + steps, name])
        for steps, name, loss in run.reported[0]
        if (start + steps, name) in reference_losses
    ]


SCHEDULE = "schedule"

UNLIKE = 1.4
"""The least ratio of the lengths of two schedules that are not the same: a dataset that cannot be
divided by the rows of a step makes one a little longer or shorter."""


def schedule(
    falls: Mapping[str, int], reference_falls: Mapping[str, int], layout: Layout
) -> Broken | None:
    """Whether a layout's schedule has another length than the reference's.

    After a resume, the highest rate may have been before the stop: only the end is compared.
    """
    for level in (LOWEST,) if layout.resumed else (LOWEST, HALF):
        if not (level in falls and level in reference_falls):
            continue
        longer = (falls[level] + layout.first) / reference_falls[level]
        if max(longer, 1 / longer) >= UNLIKE:
            factor = in_words(longer, layout.rank_factor, layout.k)
            text = (
                f"the schedule falls to {level} after {falls[level] + layout.first} steps, in the "
                f"reference after {reference_falls[level]}: {factor}"
            )
            return Broken(SCHEDULE, text, longer)
    return None
