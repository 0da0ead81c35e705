"""Does the loss fall as the reference's gradient says? By finite differences along that gradient.

This finds a backward that is not that of its forward, which all layouts have. Only a note follows:
a model may stop gradients on purpose.
"""

from __future__ import annotations

from dataclasses import replace

from harness.api.numbers import finite, near
from harness.probe.layouts import Layout, Settings, reference
from harness.probe.numbers import SAFE, Named, norm
from harness.probe.reference import Reference
from harness.probe.runs import Run

ALONG = "along the reference's gradient"
"""How the note begins: by these words a recorded note is recognised, however it goes on."""

CHANGE = 3e-3
"""The part of the loss by which a step along the gradient changes it."""

NEAR = 0.05
"""How far a slope may be from 1: a step is not infinitely small."""


def ends(settings: Settings, right: Reference) -> list[Layout]:
    """The two runs of one step whose weights are moved along the gradient, and against it."""
    if not right.steps[0]["slopes"] or not (size := _size(right)):
        return []
    base = replace(reference(settings), steps=1, epoch=False)
    return [
        replace(
            base,
            name=f"{base.name}, moved {way} the gradient",
            shift={name: sign * size * g for name, g in _gradient(right).items()},
        )
        for way, sign in (("along", 1), ("against", -1))
    ]


def note(right: Reference, runs: list[Run]) -> str:
    """How steep the loss is, if it is not as its gradient says; empty if it is, or if rounding
    decides."""
    if not runs or any(run.failure for run in runs):
        return ""
    up, down = (sum(run.ranks[0][0]["losses"]) for run in runs)
    steep = (up - down) / (2 * _size(right) * norm(_gradient(right)) ** 2)
    unsure = SAFE * right.loss_spread(0) / (CHANGE * abs(right.loss(0)))
    if not finite(steep) or near(steep, 1.0, within=max(NEAR, unsure)):
        return ""
    return (
        f"{ALONG}, its loss falls {steep:.3g} times as fast as the gradient says: a backward is "
        "not that of its forward, unless a gradient is stopped on purpose"
    )


def _gradient(right: Reference) -> Named:
    """The gradient of the first step, before clipping."""
    found: Named = right.steps[0]["raw"] or right.steps[0]["grad"]
    return found


def _size(right: Reference) -> float:
    """The length of the step, in gradients."""
    square = norm(_gradient(right)) ** 2
    loss = abs(right.loss(0))
    return CHANGE * loss / square if finite(square) and square > 0 and finite(loss) else 0.0
