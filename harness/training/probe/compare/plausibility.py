"""Is the reference itself plausible? No comparison of layouts can show that.

Some checks of its steps need no second run: a schedule does not begin with a jump; the first step
is what the formula of SGD or Adam gives; weights in 16 bits move at all; and a second epoch has
another order than the first. The results are only notes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from harness.bugs.api.numbers import near
from harness.detectors.arithmetic import MOVED, begins_with_jump, count_moved, step_by_formula
from harness.detectors.rows import have_same_order
from harness.rank.compare import Named, length, norm, share
from harness.rank.probe.exchange import Step
from harness.rank.probe.recording.parameters import COPY
from harness.system.text import count, several
from harness.training.probe.compare.reference import rows_of, unclipped

FALLS, APPLIED_FIRST = "the learning rate falls", "the first step applied"
CLIPPED = "clipping saw a gradient of norm"
IN_EVALUATION = "the model is trained in evaluation mode"
UNHELD = "no optimizer has"
LOST, SAME_ORDER = "the steps moved only", "the second epoch has the rows of the first"
NOT_STEPPED = "the model computes with other weights than it trains:"
OUTSIDE = "weights change outside of optimizer.step"
"""How the notes begin: by these words a recorded note is recognised, however it goes on."""

STALE = "was it made before the model was wrapped, sharded or replaced?"

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
    weights, eps = steps[0].before, steps[0].eps
    pairs = {copy: copy.rpartition(COPY)[0] for copy in weights if COPY in copy}
    off = [
        name
        for copy, name in pairs.items()
        if length(weights[copy] - weights[name]) > eps[copy] * length(weights[name])
    ]
    if off:
        yield (
            f"{NOT_STEPPED} {len(off)} of {len(pairs)} weights are not those that the optimizer "
            f"steps, so the first step loses them ({several(off)}): were they loaded "
            "without it?"
        )
    if unheld := steps[0].unheld:
        purpose = ". No fault if the others are trained alone on purpose"
        yield unheld_in_words(steps[0], unheld) + ("" if steps[0].strangers else purpose)
    number = next((n for n, step in enumerate(steps) if step.outside), 0)
    if changed := steps[number].outside:
        yield (
            f"{OUTSIDE}: between the steps {number} and {number + 1}, {several(changed)}, by "
            f"{max(changed.values()):.2g} of their size. No fault if the loop clamps or normalises "
            "them on purpose"
        )
    if scale := steps[0].clipped_scaled:
        ((most, norm_of_all, by_value), *_) = steps[0].clips
        left = f"values up to {most / scale:.2g}" if by_value else f"{most / scale:.2g} of it"
        yield (
            f"{CLIPPED} {norm_of_all:.4g}, which a scaler still multiplied by {scale:.4g}, and "
            f"left {left}: call scaler.unscale_(optimizer) before"
        )
    yield from left_in_evaluation(steps)
    rates = [step.lr[0] for step in steps if step.number == steps[0].number]
    if begins_with_jump(rates, JUMP):  # a warmup begins with the second step
        yield (
            f"{FALLS} from {rates[0]:.4g} to {rates[1]:.4g} after the first step, and "
            f"then rises to {rates[2]:.4g}: the first step was not taken with the schedule's rate"
        )
    yield from _applied(steps[0])
    yield from _lost([step for step in steps if step.lr[0]])
    yield from same_order([rows_of(step) for step in steps])


def unheld_in_words(step: Step, names: Collection[str]) -> str:
    """A sentence on parameters that no optimizer has, with the reason if it is known."""
    verb = "gets gradients and stays as it is" if len(names) == 1 else "get gradients and stay"
    text = f"{UNHELD} {several(names)}, which {verb}"
    if step.empty:
        return f"{text}: the optimizer has no parameters. Were they frozen when it was made?"
    if step.strangers:
        strangers = f"{count(step.strangers, 'tensor')} without a gradient that no model uses"
        return f"{text}: the optimizer has {strangers}: {STALE}"
    return text


def why_nothing_is_trained(steps: Sequence[Step]) -> str:
    """Why no step of the reference trains anything, so that no layout can differ; empty if one
    does. Rounding may keep weights in 16 bits as they are: that has a note."""
    if not any(norm(unclipped(step)) for step in steps):
        if unheld := steps[0].unheld:
            return unheld_in_words(steps[0], unheld)
        unknown = "its gradients are all 0, so no layout can differ"
        return f"{unknown}; does its loss depend on its parameters?"
    is_coarse = any(eps > COARSE for eps in steps[0].eps.values())
    if is_coarse or any(norm(step.update) for step in steps):
        return ""
    if not any(norm(step.grad) for step in steps):
        why = "nothing is left of its gradients after clipping"
    elif not any(rate for step in steps for rate in step.lr):
        why = "its learning rate is 0 in all steps"
    else:
        return ""  # a loop may move weights itself, as a line search does
    return f"{why}, so it trains nothing, and no layout can differ"


def left_in_evaluation(steps: Sequence[Step]) -> Iterator[str]:
    """A model whose dropout and batch norms are in training mode in the first step, and in none of
    the calls that train it in a later one. The step of another optimizer, such as that of a GAN's
    generator, may not train it."""
    same = [(n, step) for n, step in enumerate(steps) if step.number == steps[0].number]
    number = next((n for n, step in same if step.modes == {False}), 0)
    if number and steps[0].modes == {True}:
        yield (
            f"{IN_EVALUATION} from step {number + 1} on, without dropout and with the averages of "
            "batch norms: is model.train() missing after an evaluation? Without training mode, "
            "probe does not see which rows the model is given"
        )


def _applied(step: Step) -> Iterator[str]:
    """A first step that differs from what the optimizer's formula gives for its gradient."""
    size = norm(step.grad)
    clipping, rate = step.clipping, step.lr[0]
    if not (step.fresh and clipping is not None and rate and 0 < size < LARGEST):
        return
    clip_factor = min(1.0, clipping / size) if clipping else 1.0
    expected = _formula(step, rate, clip_factor)
    if expected is None:
        return
    rounded = sum((step.eps[n] / 2 * norm({n: step.before[n]})) ** 2 for n in expected)
    if float(rounded**0.5) > APPLIED * norm(expected):
        return  # the rounding of the weights hides the step
    ratio = share(step.update, expected).ratio
    if near(ratio, 1.0, share=APPLIED):
        return
    if step.optimizer != "SGD":
        kind = step.optimizer
        text = f"{ratio:.4g} times what {kind}'s formula gives for its gradient"
    elif clipping:
        text = f"{ratio * clip_factor:.4g} times the gradient of norm {size:.4g}; clipping to "
        text += f"{clipping:.4g} leaves {clip_factor:.4g} times"
    else:
        text = f"{ratio:.4g} times the gradient, and nothing clips it"
    yield f"{APPLIED_FIRST} {text}: all layouts have that"


def _formula(step: Step, rate: float, clipped: float) -> Named | None:
    """The first step of SGD, Adam and AdamW; None for others, or if its groups are not alike."""
    group, kind = step.group, step.optimizer
    odd = any(group.get(name, value) != value for name, value in PLAIN.items())
    if odd or not group:
        return None
    # Records have no betas. A first step does not depend on them, nor on the momentum.
    settings = {**group, "lr": rate, "momentum": 0, "betas": (0.0, 0.0)}
    updates = {
        name: step_by_formula(
            kind, settings, step.before[name], clipped * gradient.astype(float), {}
        )
        for name, gradient in step.grad.items()
    }
    return None if any(update is None for update in updates.values()) else updates


def _lost(steps: Sequence[Step]) -> Iterator[str]:
    """Weights in 16 bits whose updates are less than half an ulp of them."""
    portion = 0.0
    for step in steps:
        coarse = [n for n in step.grad if step.eps[n] > COARSE and n in step.update]
        count, total = count_moved((step.update[n] != 0, step.grad[n] != 0) for n in coarse)
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
