"""With gradient accumulation keras updates the moving average of the weights at each micro-batch.

An optimizer with ``use_ema=True`` and ``gradient_accumulation_steps=k`` must average the weights
once in an update. It averages them k times, although the weights change once: the momentum is
``ema_momentum`` to the power of k. So the average follows the weights k times as fast as
configured, and smooths less. No error is raised. keras 3.15.1, the newest release, is affected.

Root cause: ``BaseOptimizer._backend_apply_gradients`` updates the average outside of the branch
that updates the weights. Pull request 19998 (3.5.0) moved weight decay and clipping into that
branch, and left the average where it was. It made ``iterations`` count updates, so that the first
update is right by now, and so is a run that overwrites the weights by the average in each step:
averaging once more changes nothing there. We know of no report about the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.keras import _accumulated as accumulated


@dataclass
class Params(accumulated.Params):
    momentum: float = api.knob(0.5, above=0, most=0.999, about="ema_momentum of the optimizer")
    ema: bool = api.knob(True, about="use_ema of the optimizer")


def only_with_an_update(function: Any) -> api.Edits:
    """The average is left alone by a micro-batch that does not update the weights."""
    import libcst as cst
    import libcst.matchers as m

    code = "not self.gradient_accumulation_steps or is_update_step"
    for branch in m.findall(function, m.If(m.Attribute(attr=m.Name("use_ema")))):
        outer: Any = branch
        inner = cst.If(cst.parse_expression(code), outer.body)
        yield branch, outer.with_changes(body=cst.IndentedBlock([inner]))


REMEDY = api.Defect(
    upstream="keras",
    file="keras/src/optimizers/base_optimizer.py",
    scope="BaseOptimizer._backend_apply_gradients",
    edit=only_with_an_update,
    about="our remedy: the average is updated with the weights only; for the torch backend, which "
    "decides that outside of a graph",
)

SCENARIO = api.Scenario(
    report=(
        "no report of the average; the pull request that mended weight decay and clipping",
        "https://github.com/keras-team/keras/pull/19998",
    ),
    fix="none as of keras 3.15.1",
    symptom="with gradient accumulation, the moving average is updated at each micro-batch",
    trigger="use_ema=True with gradient_accumulation_steps above 1",
    remedy="average the weights in a callback after each update; or take the k-th root of "
    "ema_momentum for k micro-batches, which comes close",
    pins={"keras": "3.15.1"},
    releases="keras>=3.0.2",
    absent=(accumulated.BEFORE,),
    known_upstream=False,
    harm="ruins training",
    visibility="silent",
    settings={
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("keras' optimizer accumulates, and has use_ema=True"),
    },
    files=("keras/src/optimizers/base_optimizer.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(about="3.15.1 with our remedy", defects=(REMEDY,)),
        "control": api.control("3.15.1 without accumulation", params={"accumulation": 1}),
        "plain": api.control("3.15.1 without the average", params={"ema": False}),
    },
)


def each_micro_batch(step: accumulated.Step, records: api.Records) -> bool:
    """The average was updated at each micro-batch: all but the last found the weights as they were
    before the update. The weights are right."""
    p, steps = records.params, records.typed(accumulated.Step)
    if step.step == 1 and accumulated.equal(step.average, step.weights):
        return True  # since 3.5.0 all micro-batches of the first update set it
    # Up to 3.4.1 the first micro-batch of all sets the average to the weights.
    earlier = steps[step.step - 2].average if step.step > 1 else step.before
    late = p.momentum ** (p.accumulation - 1)
    rows = zip(earlier, step.before, step.weights, strict=True)
    waiting = [(late * average + (1 - late) * weight, after) for average, weight, after in rows]
    documented = [p.momentum * average + (1 - p.momentum) * after for average, after in waiting]
    return accumulated.equal(step.average, documented)


def weights_unlike(records: api.Records) -> dict[str, bool]:
    """The weights are right."""
    unlike = accumulated.weights_wrong(records)
    return {"the weights are not those of an update with the mean": unlike}


oracle = accumulated.Accumulated(
    each_micro_batch,
    "average",
    checks=[weights_unlike],
    picture=accumulated.far(
        "average",
        "with the bug the average leaves that of updates with the mean of the micro-batches",
    ),
)


def run(ctx: api.Context) -> None:
    """Update with the optimizer's own accumulation, and with the mean of the micro-batches."""
    p = ctx.params
    accumulated.train(ctx, **({"use_ema": True, "ema_momentum": p.momentum} if p.ema else {}))


def exercised(records: api.Records) -> api.Exercise:
    """Several micro-batches made an update, with an average of the weights."""
    p = records.params
    text = f"{p.accumulation} micro-batches; ema_momentum {p.momentum:g}"
    return accumulated.accumulated(records) & api.Exercise.of(p.ema, text, "there is no average")
