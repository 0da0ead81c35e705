"""The losses of evaluations that a layout reports, beside those of the reference."""

from __future__ import annotations

from dataclasses import dataclass

from harness.api.numbers import near
from harness.probe.ratios import meaning, times
from harness.probe.relations import Broken
from harness.probe.runs import Run

RELATION = "evaluation"

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
            return Broken(RELATION, text, ratio, words)
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
