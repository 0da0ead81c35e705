"""Gradient clipping leaves large gradients as they are, and scales small ones up to the threshold.

In DeepSpeed 0.13.2, in fp32 without ZeRO, clipping multiplies all gradients by the larger of 1 and
threshold / norm, instead of the smaller. A gradient above the threshold is not clipped; a gradient
below the threshold is scaled up to it. Near the optimum, where gradients are small, every step then
has the length lr * threshold, and the loss stops falling.

Nothing failed. A maintainer found the bug, and users asked how it could go unnoticed.

Root cause: to avoid waiting for the device, a change replaced ``if clip_coef < 1`` with a maximum
of tensors (DeepSpeed PR 4915). The fix is the minimum. ZeRO, fp16 and bf16 clip in other code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.bugs import api
from scenarios.common import applied, usual_checks


def larger_factor(step: applied.Step, records: api.Records) -> bool:
    """Gradients above the threshold were applied unclipped, and those below it were scaled up to
    it."""
    whole, raised = _kinds(records.typed(applied.Step), records)
    factor = max(1.0, records.params.clipping / step.gradient)
    return bool(whole and raised) and step.times(factor)


def smaller_factor(step: applied.Step, records: api.Records) -> float:
    """The factor by which clipping should multiply a step's gradient."""
    clipping = records.params.clipping
    return float(min(1.0, clipping / step.gradient)) if clipping else 1.0


def _kinds(steps: Sequence[applied.Step], records: api.Records) -> Sequence[list[applied.Step]]:
    """The steps that were not clipped, and those that were raised to the threshold."""
    clipping = records.params.clipping
    whole = [s for s in steps if s.gradient > clipping and s.times(1)]
    small = [s for s in steps if s.gradient < clipping]
    return whole, [s for s in small if s.times(clipping / s.gradient)]


def kinds(wrong_steps: Sequence[applied.Step], records: api.Records) -> Iterator[str]:
    """The first step that was not clipped, and the last that was raised."""
    clipping, (whole, raised) = records.params.clipping, _kinds(wrong_steps, records)
    yield from map(str, wrong_steps[:1] if not (whole or raised) else ())
    yield from (f"not clipped to {clipping:g}: {step}" for step in whole[:1])
    yield from (f"raised to {clipping:g}: {step}" for step in raised[-1:])
    yield (
        f"of {len(records.of('step'))} steps of {len(records.ranks)} ranks {len(wrong_steps)} are "
        f"wrong: {len(whole)} not clipped, {len(raised)} raised to the threshold"
    )


def norms(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of the norm of each applied gradient, with the threshold."""
    thresholds = (records.params.clipping for records in trials.values())
    yield api.Lines(
        "The norm of the gradient that was applied",
        "with the bug no norm is below the threshold, and large gradients are not clipped",
        api.by_step(trials, lambda step: step["applied"]),
        y="norm",
        log=True,
        limits={"threshold": max(thresholds, default=0.0)},
    )


oracle = applied.Applied(
    applied.Step,
    larger_factor,
    smaller_factor,
    parts=lambda at: 1,
    replicas=True,
    loss="parts",
    words=kinds,
    checks=[usual_checks.loss_ends_higher, applied.same_direction],
    picture=norms,
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD; compare each step with plain torch's gradient."""
    from scenarios.deepspeed import _linear_steps as linear_steps

    p = ctx.params
    zero = {"stage": 0}
    linear_steps.train(
        ctx, p.distance, p.noise, gradient_clipping=p.clipping, zero_optimization=zero
    )


def exercised(records: api.Records) -> api.Exercise:
    """Some gradients were above the threshold, and some below it."""
    steps, clipping = records.of("step", 0), records.params.clipping
    large = sum(0 < clipping < step["gradient"] for step in steps)
    small = sum(step["gradient"] < clipping for step in steps)
    text = f"{large} gradients were above the threshold, and {small} below it, of {len(steps)}"
    return api.Exercise.of(bool(large and small), text)
