"""The gradient norm counts the attention sinks of the first tensor-parallel rank only.

This affects users who train learnable sinks (``softmax_type="learnable"``) with tensor parallelism.
The norm is too small, so clipping lets more through than ``clip_grad`` allows. If the complete
attention trains, the norm here is too small by up to 0.3 % on 2 ranks. If only the sinks train, it
is too small by up to 44 %, and a step has the norm 0.18 with a limit of 0.1.

Root cause: each rank has the sinks of its own heads, but the parameter ``softmax_offset`` lacks the
attribute ``tensor_model_parallel``, by which the optimizer distinguishes parts from copies. So it
takes the sinks for copies, and counts only those of rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.bugs import api

WITHIN = 1e-5
"""How far (as a fraction) a norm may be from the right one; rounding in fp32 moves it by 1e-7."""


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.only_sinks and not params.sinks:
        raise ValueError("scenario.only_sinks needs scenario.sinks")


def marked(function: Any) -> api.Edits:
    """Mark the sinks right after they are registered."""
    import libcst as cst
    import libcst.matchers as m

    registered = m.SimpleStatementLine(
        [m.Expr(m.Call(m.Attribute(attr=m.Name("register_parameter"))))]
    )
    for line in m.findall(function, registered):
        mark = cst.parse_statement("self.softmax_offset.tensor_model_parallel = True")
        yield line, cst.FlattenSentinel([line, mark])


def plan(at: api.Position) -> api.Plan:
    """Each step: upstream's norm, and the norms of this rank's gradients and of its movement."""
    step = {"norm": api.alike(api.SIZE), "own": api.SIZE, "sinks": api.SIZE, "applied": api.SIZE}
    return {"step": api.Kind(step, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train an attention of upstream's parts, whose heads the ranks share."""
    from scenarios.megatron_core.sink_norm import attention

    with ctx.phase("steps"):
        attention.train(ctx)


@dataclass(frozen=True)
class Step:
    """The norms of a step over all ranks."""

    number: int
    norm: float
    """Upstream's."""
    right: float
    first: float
    """With the sinks of the first rank only."""
    applied: float


def _steps(records: api.Records) -> Iterator[Step]:
    for step in records.of("step", 0):
        ranks = [s for s in records.of("step") if s["step"] == step["step"]]
        whole = math.hypot(*(s["own"] for s in ranks))
        later = math.hypot(*(s["sinks"] for s in ranks[1:]))
        documented = math.sqrt(max(whole**2 - later**2, 0.0))
        applied = math.hypot(*(s["applied"] for s in ranks))
        yield Step(step["step"], step["norm"], whole, documented, applied)


def detect(records: api.Records) -> api.Finding | None:
    """Upstream's norm leaves out the sinks of all ranks but the first, and each step is clipped by
    that norm."""
    clipping, steps = records.params.clipping, list(_steps(records))
    faults = [
        s for s in steps if not (api.near(s.norm, s.right, share=WITHIN) and _fits(s, clipping))
    ]
    if not faults:
        return None
    worst = min(faults, key=lambda s: s.norm / s.right)
    return api.Finding(
        f"in {len(faults)} steps the norm is wrong: in step {worst.number} {worst.norm:.5g}, where "
        f"{worst.right:.5g} is right; the step has the norm {worst.applied:.5g}, the limit is "
        f"{clipping:g}",
        step=faults[0].number,
        parameters=("softmax_offset",),
        ranks=records.ranks,
        magnitude=1 - worst.norm / worst.right,
        unit="of the right norm",
        documented=all(
            api.near(s.norm, s.first, share=WITHIN) and _fits(s, clipping) for s in steps
        ),
    )


def _fits(step: Step, clipping: float) -> bool:
    """Whether the step is the gradient, clipped by upstream's norm."""
    factor = min(1.0, clipping / (step.norm + 1e-6))
    return api.near(step.applied, factor * step.right, share=1e-4)


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks had sinks with a gradient, and there was clipping to do."""
    steps, clipping = list(_steps(records)), records.params.clipping
    later = [s["sinks"] for s in records.of("step") if s["rank"]]
    return api.Exercise.of(
        bool(later) and min(later) > 0,
        f"the second rank's sinks had gradients of {min(later, default=0):.3g} and more",
        "only the first rank had sinks with a gradient",
    ) & api.Exercise.of(
        min(s.right for s in steps) > clipping,
        f"all gradients were above {clipping:g}",
        f"no gradient was above {clipping:g} in some step",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """All ranks have the same norm, since it is reduced; and by that norm each step is clipped."""
    clipping = records.params.clipping
    unclipped = [s for s in _steps(records) if not _fits(s, clipping)]
    norms = {(s["step"], s["norm"]) for s in records.of("step")}
    return {
        "the ranks have different norms": len(norms) > len(records.of("step", 0)),
        "a step is not clipped by the norm that is logged": bool(unclipped),
    }


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of the norms of the steps and the limit."""
    limit = max((records.params.clipping for records in trials.values()), default=0.0)
    yield api.Lines(
        "The norm of each step",
        "with the bug the steps are longer than the limit of clipping; without it they are as long",
        [
            (variant, step.number, step.applied)
            for variant, records in trials.items()
            for step in _steps(records)
        ],
        y="norm",
        limits={"limit": limit},
    )
