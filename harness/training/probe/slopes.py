"""Finite differences along the reference's gradient: does the loss fall as the gradient says?

They find a backward that does not match its forward. On the reference the result is only a note,
because a model may stop gradients on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.bugs.api.numbers import finite, near
from harness.rank.compare import SAFE, Named, are_near, norm
from harness.system.text import StrEnum
from harness.training.probe.compare.reference import Reference, unclipped
from harness.training.probe.layouts import Layout, Settings, reference
from harness.training.probe.runner import Run
from harness.training.probe.session import Session

ALONG = "along the reference's gradient"
"""How the note begins: by these words a recorded note is recognised, however it goes on."""

CHANGES = (3e-3, 3e-4, 3e-5)
"""The parts of the loss by which a step along the gradient changes it."""

NEAR_SLOPE = 0.05
"""How far a slope may be from 1: a step is not infinitely small."""

LIKE = 1e-2
"""How far gradients of two ranks may be from each other, as a part of their norm."""

ALIKE = 0.1
"""How far slopes of smaller steps may be from each other, as a part of them."""


@dataclass(frozen=True)
class Steep:
    """How much faster the loss falls than the gradient says, and how far rounding may move that."""

    slope: float
    unsure: float

    @property
    def is_right(self) -> bool:
        return near(self.slope, 1.0, within=max(NEAR_SLOPE, self.unsure))


Slopes = Sequence[Steep | None]
"""Those of smaller and smaller steps; None where a run gave no answer."""


def same_gradients(run: Run) -> bool:
    """Whether the ranks of the reference have the same gradients in the first step: otherwise the
    loss of all has no slope along the gradient of one."""
    gradient, *others = (steps[0].grad for steps in run.ranks)
    return all(are_near(gradient, twin, LIKE) for twin in others)


class Direction(StrEnum):
    """In which weights are moved, as a part of the first step's gradient."""

    GRADIENT = "the gradient"
    EARLY = "the gradients of the first weights"
    LATE = "the gradients of the last weights"
    """Half of the weights, each moved as far as the others: a large gradient, such as that of the
    last bias, would hide that all others are wrong."""

    def of(self, gradient: Named) -> Named:
        """The direction, for a gradient by parameter in the order of the model."""
        if self is Direction.GRADIENT:
            return gradient
        names = [name for name, values in gradient.items() if norm({name: values})]
        half = len(names) // 2
        names = names[:half] if self is Direction.EARLY else names[half:]
        return {name: gradient[name] / norm({name: gradient[name]}) for name in names}


def ends_of_slope(
    settings: Settings,
    baseline: Reference,
    change: float = CHANGES[0],
    layout: Layout | None = None,
    direction: Direction = Direction.GRADIENT,
) -> list[Layout]:
    """The two runs of one step whose weights are moved in a direction, and against it, so far that
    the loss changes by a part of it: of the reference, or of a layout of one step."""
    step, gradient, loss = baseline.steps[0], _gradient(baseline), abs(baseline.loss(0))
    moved = direction.of(gradient)
    square = sum(float((gradient[name] * values).sum()) for name, values in moved.items())
    if not (step.slopes and finite(square) and square > 0 and finite(loss) and loss):
        return []
    if step.left and not near(step.left, norm(gradient), share=LIKE):
        return []  # the loop divides its gradients, and those of the backwards are not known
    base = layout or replace(reference(settings), steps=1, epoch=False)
    size = change * loss / square
    return [
        replace(
            base,
            name=f"{base.name}, moved {way} {direction} by {change:g}",
            shift={name: sign * size * values for name, values in moved.items()},
        )
        for way, sign in (("along", 1), ("against", -1))
    ]


def slopes(
    session: Session,
    baseline: Reference,
    base: Layout | None = None,
    direction: Direction = Direction.GRADIENT,
) -> Slopes:
    """How steep the loss is along the first step's gradient, or a part of it. If that is not as the
    gradient says, smaller steps are measured, too: over a large step, a loss is not straight."""
    measured: list[Steep | None] = []
    for change in CHANGES:
        ends = ends_of_slope(session.settings, baseline, change, base, direction)
        session.start(*ends)
        runs = [session.run_as_one(each) for each in ends]
        steep = None
        if runs and not any(run.failure for run in runs):
            up, down = (sum(run.ranks[0][0].losses) for run in runs)
            size = change * abs(baseline.loss(0))
            steep = Steep((up - down) / (2 * size), SAFE * baseline.loss_spread(0) / size)
        measured.append(steep if steep is not None and finite(steep.slope) else None)
        if measured[0] is None or measured[0].is_right:
            break
    return measured


def is_right(slopes: Slopes) -> bool:
    """Whether the loss of one of the steps falls as the gradient says."""
    return any(one is not None and one.is_right for one in slopes)


def wrong_slope(slopes: Slopes) -> float | None:
    """The slope with the smallest step, if all that rounding does not decide agree that the loss
    does not fall as its gradient says."""
    sure = [one for one in slopes if one is not None and one.unsure < ALIKE]
    if len(sure) < 2 or any(one.is_right for one in sure):
        return None
    slope = sure[-1].slope
    agree = all(near(one.slope, slope, within=ALIKE * abs(slope) + one.unsure) for one in sure)
    return slope if agree else None


def note_on_slope(slopes: Slopes) -> str:
    """A note if the loss does not fall as its gradient says."""
    slope = wrong_slope(slopes)
    # Where the loss stays as it is, its gradient is that of a surrogate, as in GRPO.
    if slope is None or abs(slope) < NEAR_SLOPE:
        return ""
    return (
        f"{ALONG}, its loss falls {slope:.3g} times as fast as the gradient says: a backward is "
        "not that of its forward, unless a gradient is stopped on purpose"
    )


def _gradient(baseline: Reference) -> Named:
    """The gradient of the first step as the backwards left it, if a single rank recorded that;
    otherwise before clipping. Loops divide it by a number of rows or tokens after the backwards."""
    step = baseline.steps[0]
    gradient = unclipped(step)
    names = {name for part in step.parts for name in part}
    if step.several_ranks or not names.issuperset(gradient):
        return gradient
    order = {name: place for place, name in enumerate(step.before)}
    in_order = sorted(names, key=lambda name: (order.get(name, len(order)), name))
    return {n: sum(part[n] for part in step.parts if n in part) for n in in_order}
