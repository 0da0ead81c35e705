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

from typing import Any

from harness.bugs import api
from scenarios.keras import _accumulated as accumulated


def only_with_an_update(function: Any) -> api.Edits:
    """The average is left alone by a micro-batch that does not update the weights."""
    import libcst as cst
    import libcst.matchers as m

    code = "not self.gradient_accumulation_steps or is_update_step"
    for branch in m.findall(function, m.If(m.Attribute(attr=m.Name("use_ema")))):
        outer: Any = branch
        inner = cst.If(cst.parse_expression(code), outer.body)
        yield branch, outer.with_changes(body=cst.IndentedBlock([inner]))


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
