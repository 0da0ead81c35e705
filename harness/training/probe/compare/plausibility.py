"""Is the reference itself plausible? No comparison of layouts can show that.

Some checks of its steps need no second run: a schedule does not begin with a jump; the first step
is what the formula of SGD or Adam gives; weights in 16 bits move at all; and a second epoch has
another order than the first. Finite differences along its gradient show whether the loss falls as
the gradient says: they find a backward that does not match its forward. The results are only notes,
because a model may stop gradients on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.bugs.api.numbers import finite, near
from harness.detectors.arithmetic import MOVED, begins_with_jump, count_moved, step_by_formula
from harness.detectors.rows import have_same_order
from harness.rank.compare import SAFE, Named, norm, share
from harness.rank.probe.recording.parameters import COPY
from harness.system.text import StrEnum
from harness.training.probe.compare.faults import several
from harness.training.probe.compare.optimizers import note_on_unheld, why_without_gradient
from harness.training.probe.compare.reference import Reference, rows_of, unclipped
from harness.training.probe.layouts import Layout, Settings, reference
from harness.training.probe.runner import Run, Step

FALLS, APPLIED_FIRST = "the learning rate falls", "the first step applied"
CLIPPED = "clipping saw a gradient of norm"
IN_EVALUATION = "the model is trained in evaluation mode"
LOST, SAME_ORDER = "the steps moved only", "the second epoch has the rows of the first"
NOT_STEPPED = "the model computes with other weights than it trains:"
OUTSIDE = "weights change outside of optimizer.step"
COMPILED = "compiled, the first gradient is"
"""How the notes begin: by these words a recorded note is recognised, however it goes on."""

JUMP = 1.5
"""The largest ratio of the first rate to the second, if the third one is higher again."""

APPLIED = 0.01
"""How far (as a fraction) the first step may be from the formula's; bf16 included."""

LARGEST = 1e19
"""Fp32 cannot hold the square of a larger gradient, which Adam needs."""

PLAIN = {"dampening": 0, "maximize": False, "nesterov": False, "correct_bias": True}
"""The settings with which the first step of SGD or Adam is the formula's."""

COARSE = 1e-5
"""From this ulp of 1 on, weights are in 16 bits."""


def notes_on_steps(steps: Sequence[Step]) -> Iterator[str]:
    """One line for each thing that is odd in the reference's own steps."""
    yield from _unlike_copies(steps[0])
    yield from note_on_unheld(steps[0])
    yield from _outside(steps)
    yield from _clipped_scaled(steps[0])
    yield from left_in_evaluation(steps)
    yield from _jump([step["lr"][0] for step in steps if step["number"] == steps[0]["number"]])
    yield from _applied(steps[0])
    yield from _lost([step for step in steps if step["lr"][0]])
    yield from same_order([rows_of(step) for step in steps])


def why_nothing_is_trained(steps: Sequence[Step]) -> str:
    """Why no step of the reference trains anything, so that no layout can differ; empty if one
    does. Rounding may keep weights in 16 bits as they are: that has a note."""
    if not any(norm(unclipped(step)) for step in steps):
        unknown = "its gradients are all 0, so no layout can differ"
        return (
            why_without_gradient(steps[0]) or f"{unknown}; does its loss depend on its parameters?"
        )
    is_coarse = any(eps > COARSE for eps in steps[0]["eps"].values())
    if is_coarse or any(norm(step["update"]) for step in steps):
        return ""
    if not any(norm(step["grad"]) for step in steps):
        why = "nothing is left of its gradients after clipping"
    elif not any(rate for step in steps for rate in step["lr"]):
        why = "its learning rate is 0 in all steps"
    else:
        return ""  # a loop may move weights itself, as a line search does
    return f"{why}, so it trains nothing, and no layout can differ"


def note_on_compiler(baseline: Reference) -> Iterator[str]:
    """A note if the first gradient of a compiled loop is not that of the same loop without a
    compiler."""
    step = baseline.steps[0]
    if unlike_eager(baseline) and not step["draws"]:
        part = share(step["grad"], baseline.rounded[0][0]["grad"])
        aside = f", {part.aside:.0%} of it in another direction" if not part.is_factor else ""
        text = f"times that of the same loop without torch.compile{aside}"
        yield f"{COMPILED} {part.ratio:.4g} {text}"


def unlike_eager(baseline: Reference) -> bool:
    """Whether the first gradient of a compiled reference is not that of the perturbed runs, which
    compile nothing and agree with each other."""
    step, eager = baseline.steps[0], [run[0]["grad"] for run in baseline.rounded if run]
    if not step.get("compiled") or len(eager) < 2 or not norm(eager[0]):
        return False
    plain, again = eager[:2]
    agree = are_near(plain, again, NEAR_SLOPE)
    return agree and not are_near(step["grad"], plain, NEAR_SLOPE)


def are_near(gradient: Named, twin: Named, share: float) -> bool:
    """Whether two gradients differ by at most a part of their norm, in what both have."""
    common = {n: g for n, g in twin.items() if n in gradient and gradient[n].shape == g.shape}
    return norm({name: gradient[name] - g for name, g in common.items()}) <= share * norm(common)


def _unlike_copies(step: Step) -> Iterator[str]:
    """A note if the model's weights in 16 bits are not the rounded weights that the optimizer
    steps."""
    pairs = {name: name.rpartition(COPY)[0] for name in step["before"] if COPY in name}
    off = [
        whole
        for name, whole in pairs.items()
        if norm({name: step["before"][name] - step["before"][whole]})
        > step["eps"][name] * norm({name: step["before"][whole]})
    ]
    if off:
        yield (
            f"{NOT_STEPPED} {len(off)} of {len(pairs)} weights are not those that the optimizer "
            f"steps, so the first step loses them ({several(off)}): were they loaded "
            "without it?"
        )


def _outside(steps: Sequence[Step]) -> Iterator[str]:
    """Weights that something other than the optimizer's step changes."""
    number = next((n for n, step in enumerate(steps) if step["outside"]), 0)
    if changed := steps[number]["outside"]:
        yield (
            f"{OUTSIDE}: between the steps {number} and {number + 1}, {several(changed)}, by "
            f"{max(changed.values()):.2g} of their size. No fault if the loop clamps or normalises "
            "them on purpose"
        )


def _clipped_scaled(step: Step) -> Iterator[str]:
    """Clipping before the scaler of the loss has divided the gradients."""
    if scale := step.get("clipped_scaled"):
        ((most, saw, by_value), *_) = step["clips"]
        left = f"values up to {most / scale:.2g}" if by_value else f"{most / scale:.2g} of it"
        yield (
            f"{CLIPPED} {saw:.4g}, which a scaler still multiplied by {scale:.4g}, and "
            f"left {left}: call scaler.unscale_(optimizer) before"
        )


def left_in_evaluation(steps: Sequence[Step]) -> Iterator[str]:
    """A model whose dropout and batch norms are in training mode in the first step, and in none of
    the calls that train it in a later one. The step of another optimizer, such as that of a GAN's
    generator, may not train it."""
    same = [(n, step) for n, step in enumerate(steps) if step["number"] == steps[0]["number"]]
    number = next((n for n, step in same if step.get("modes") == {False}), 0)
    if number and steps[0].get("modes") == {True}:
        yield (
            f"{IN_EVALUATION} from step {number + 1} on, without dropout and with the averages of "
            "batch norms: is model.train() missing after an evaluation? Without training mode, "
            "probe does not see which rows the model is given"
        )


def _jump(rates: Sequence[float]) -> Iterator[str]:
    """A warmup that begins with the second step."""
    if begins_with_jump(rates, JUMP):
        yield (
            f"{FALLS} from {rates[0]:.4g} to {rates[1]:.4g} after the first step, and "
            f"then rises to {rates[2]:.4g}: the first step was not taken with the schedule's rate"
        )


def _applied(step: Step) -> Iterator[str]:
    """A first step that differs from what the optimizer's formula gives for its gradient."""
    size = norm(step["grad"])
    clipping, rate = step["clipping"], step["lr"][0]
    is_computable = step["fresh"] and clipping is not None
    if not (is_computable and rate and 0 < size < LARGEST):
        return
    clip_factor = min(1.0, clipping / size) if clipping else 1.0
    expected = _formula(step, rate, clip_factor)
    if expected is None or _drowned(step, expected):
        return
    ratio = share(step["update"], expected).ratio
    if near(ratio, 1.0, share=APPLIED):
        return
    if step["optimizer"] != "SGD":
        kind = step["optimizer"]
        text = f"{ratio:.4g} times what {kind}'s formula gives for its gradient"
    elif clipping:
        text = f"{ratio * clip_factor:.4g} times the gradient of norm {size:.4g}; clipping to "
        text += f"{clipping:.4g} leaves {clip_factor:.4g} times"
    else:
        text = f"{ratio:.4g} times the gradient, and nothing clips it"
    yield f"{APPLIED_FIRST} {text}: all layouts have that"


def _formula(step: Step, rate: float, clipped: float) -> Named | None:
    """The first step of SGD, Adam and AdamW; None for others, or if its groups are not alike."""
    group, kind = step["group"], step["optimizer"]
    odd = any(group.get(name, value) != value for name, value in PLAIN.items())
    if odd or not group:
        return None
    # Records have no betas. A first step does not depend on them, nor on the momentum.
    settings = {**group, "lr": rate, "momentum": 0, "betas": (0.0, 0.0)}
    updates = {
        name: step_by_formula(
            kind, settings, step["before"][name], clipped * gradient.astype(float), {}
        )
        for name, gradient in step["grad"].items()
    }
    return None if any(update is None for update in updates.values()) else updates


def _drowned(step: Step, expected: Named) -> bool:
    """Whether the rounding of the weights hides the step."""
    rounded = sum((step["eps"][n] / 2 * norm({n: step["before"][n]})) ** 2 for n in expected)
    return float(rounded**0.5) > APPLIED * norm(expected)


def _lost(steps: Sequence[Step]) -> Iterator[str]:
    """Weights in 16 bits whose updates are less than half an ulp of them."""
    portion = 0.0
    for step in steps:
        coarse = [n for n in step["grad"] if step["eps"][n] > COARSE and n in step["update"]]
        count, total = count_moved((step["update"][n] != 0, step["grad"][n] != 0) for n in coarse)
        if not total:
            return
        portion = max(portion, count / total)
    if steps and portion < MOVED:
        yield (
            f"{LOST} {portion:.0%} of the values of weights in 16 bits: the updates of the others "
            "are less than their rounding, and no copy in fp32 keeps them"
        )


def same_order(steps: Sequence[Sequence[str]]) -> Iterator[str]:
    """A step later than the second that has the rows of the first, in the same order."""
    again = (n for n, rows in enumerate(steps) if n > 1 and have_same_order(rows, steps[0]))
    if (number := next(again, 0)) and steps[1] != steps[0]:
        yield (
            f"{SAME_ORDER} in the same order (step {number + 1} is as step 1): is set_epoch "
            "missing? No fault if the order is fixed on purpose"
        )


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


def same_gradients(run: Run) -> bool:
    """Whether the ranks of the reference have the same gradients in the first step: otherwise the
    loss of all has no slope along the gradient of one."""
    gradient, *others = (steps[0]["grad"] or {} for steps in run.ranks)
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
    change: float,
    layout: Layout | None = None,
    direction: Direction = Direction.GRADIENT,
) -> list[Layout]:
    """The two runs of one step whose weights are moved in a direction, and against it: of the
    reference, or of a layout of one step."""
    if not baseline.steps[0]["slopes"] or not (size := _size(baseline, change, direction)):
        return []
    left = baseline.steps[0]["left"]
    if left and not near(left, norm(_gradient(baseline)), share=LIKE):
        return []  # the loop divides its gradients, and those of the backwards are not known
    base = layout or replace(reference(settings), steps=1, epoch=False)
    moved = direction.of(_gradient(baseline))
    return [
        replace(
            base,
            name=f"{base.name}, moved {way} {direction} by {change:g}",
            shift={name: sign * size * values for name, values in moved.items()},
        )
        for way, sign in (("along", 1), ("against", -1))
    ]


def steep(baseline: Reference, runs: Sequence[Run], change: float) -> Steep | None:
    """How steep the loss is between two runs; None if they give no answer."""
    if not runs or any(run.failure for run in runs):
        return None
    up, down = (sum(run.ranks[0][0]["losses"]) for run in runs)
    slope = (up - down) / (2 * change * abs(baseline.loss(0)))
    unsure = SAFE * baseline.loss_spread(0) / (change * abs(baseline.loss(0)))
    return Steep(slope, unsure) if finite(slope) else None


def wrong_slope(slopes: Sequence[Steep | None]) -> float | None:
    """The slope with the smallest step, if all that rounding does not decide agree that the loss
    does not fall as its gradient says."""
    sure = [one for one in slopes if one is not None and one.unsure < ALIKE]
    if len(sure) < 2 or any(one.is_right for one in sure):
        return None
    slope = sure[-1].slope
    agree = all(near(one.slope, slope, within=ALIKE * abs(slope) + one.unsure) for one in sure)
    return slope if agree else None


def note_on_slope(slopes: Sequence[Steep | None]) -> str:
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
    names = {name for part in step["parts"] for name in part}
    if step.get("several_ranks") or not names.issuperset(gradient):
        return gradient
    order = {name: place for place, name in enumerate(step["before"])}
    in_order = sorted(names, key=lambda name: (order.get(name, len(order)), name))
    return {n: sum(part[n] for part in step["parts"] if n in part) for n in in_order}


def _size(baseline: Reference, change: float, direction: Direction) -> float:
    """How often a direction must be added to the weights to change the loss by a part of it."""
    gradient, loss = _gradient(baseline), abs(baseline.loss(0))
    moved = direction.of(gradient)
    square = sum(float((gradient[name] * values).sum()) for name, values in moved.items())
    return change * loss / square if finite(square) and square > 0 and finite(loss) else 0.0
