"""Does the loss fall as the reference's gradient says? By finite differences along that gradient.

This finds a backward that is not that of its forward, which all layouts have. Only a note follows:
a model may stop gradients on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.api.numbers import finite, near
from harness.probe.layouts import Layout, Settings, reference
from harness.probe.numbers import SAFE, Named, norm
from harness.probe.reference import Reference
from harness.probe.runs import Run

ALONG = "along the reference's gradient"
"""How the note begins: by these words a recorded note is recognised, however it goes on."""

CHANGES = (3e-3, 3e-4, 3e-5)
"""The parts of the loss by which a step along the gradient changes it."""

NEAR = 0.05
"""How far a slope may be from 1: a step is not infinitely small."""

ALIKE = 0.1
"""How far slopes of smaller steps may be from each other, as a part of them."""


@dataclass(frozen=True)
class Steep:
    """How much faster the loss falls than the gradient says, and how far rounding may move that."""

    slope: float
    unsure: float

    @property
    def right(self) -> bool:
        return near(self.slope, 1.0, within=max(NEAR, self.unsure))


def ends(settings: Settings, right: Reference, change: float) -> list[Layout]:
    """The two runs of one step whose weights are moved along the gradient, and against it."""
    if not right.steps[0]["slopes"] or not (size := _size(right, change)):
        return []
    base = replace(reference(settings), steps=1, epoch=False)
    return [
        replace(
            base,
            name=f"{base.name}, moved {way} the gradient by {change:g}",
            shift={name: sign * size * g for name, g in _gradient(right).items()},
        )
        for way, sign in (("along", 1), ("against", -1))
    ]


def steep(right: Reference, runs: Sequence[Run], change: float) -> Steep | None:
    """How steep the loss is between two runs; None if they give no answer."""
    if not runs or any(run.failure for run in runs):
        return None
    up, down = (sum(run.ranks[0][0]["losses"]) for run in runs)
    slope = (up - down) / (2 * _size(right, change) * norm(_gradient(right)) ** 2)
    unsure = SAFE * right.loss_spread(0) / (change * abs(right.loss(0)))
    return Steep(slope, unsure) if finite(slope) else None


def note(found: Sequence[Steep | None]) -> str:
    """What to say of the slopes with smaller and smaller steps: empty unless all that rounding does
    not decide agree that the loss is not as its gradient says."""
    sure = [one for one in found if one is not None and one.unsure < ALIKE]
    if len(sure) < 2 or any(one.right for one in sure):
        return ""
    last = sure[-1].slope
    if not all(near(one.slope, last, within=ALIKE * abs(last) + one.unsure) for one in sure):
        return ""
    return (
        f"{ALONG}, its loss falls {last:.3g} times as fast as the gradient says: a backward is "
        "not that of its forward, unless a gradient is stopped on purpose"
    )


def _gradient(right: Reference) -> Named:
    """The gradient of the first step, before clipping."""
    found: Named = right.steps[0]["raw"] or right.steps[0]["grad"]
    return found


def _size(right: Reference, change: float) -> float:
    """The length of the step, in gradients."""
    square = norm(_gradient(right)) ** 2
    loss = abs(right.loss(0))
    return change * loss / square if finite(square) and square > 0 and finite(loss) else 0.0
