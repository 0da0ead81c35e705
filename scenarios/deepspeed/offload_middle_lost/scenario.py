"""With ZeRO-2 and CPU offload, only the first and the last accumulated micro-batch are trained.

With gradient accumulation over 4 micro-batches, two of the four are read, computed, and dropped:
each update has the gradients of the first and of the last one, still divided by 4. With 8
micro-batches 6 are dropped. The losses are right, all ranks agree, and the training makes progress
on the rest. With 1 or 2 micro-batches, or without offload, nothing is lost.

Root cause: the gradients of a micro-batch are added to a buffer on the CPU. 0.15.2 changed the
condition for this, to correct the counter of micro-batches. Since then only the first micro-batch
gets into the buffer; the last one is added when the step is taken. So the fix of one bug caused
this one.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks


def ends_only(step: applied.Step, records: api.Records) -> bool:
    """Each step applied the gradients of its first and its last micro-batch, each in full, and
    nothing of those between. The losses are plain torch's."""
    between = len(step.micro) - 2
    return step.has([1, *[0] * between, 1])


oracle = applied.Applied(
    applied.Step,
    ends_only,
    parts=lambda at: at.params.micro_batches,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD; compare each step with plain torch's gradients."""
    from scenarios.deepspeed import _linear_steps as linear_steps

    p = ctx.params
    zero: dict[str, Any] = {"stage": 2}
    if p.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    linear_steps.train(
        ctx,
        5.0,
        0.1,
        p.micro_batches,
        zero_allow_untested_optimizer=True,
        zero_force_ds_cpu_optimizer=False,
        zero_optimization=zero,
    )
