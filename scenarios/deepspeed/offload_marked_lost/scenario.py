"""With CPU offload, a loop that marks its last backward pass trains that pass alone.

DeepSpeed lets a loop accumulate by itself: ``gradient_accumulation_steps`` is 1, and
``set_gradient_accumulation_boundary`` says before each backward pass whether a step follows. With
an offloaded optimizer at stage 2, all gradients but those of the last pass are computed and
dropped: with 4 passes, each update has a quarter of its gradient. The losses are right, and all
ranks agree. Without offload such a loop is right, and so it is with DeepSpeed's own accumulation,
and at stage 1.

Root cause: the buffer on the CPU that keeps the sum is used if ``gradient_accumulation_steps`` is
above 1 alone. Otherwise the last pass overwrites what is there. The fix asks whether passes came
before, or will follow.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks

oracle = applied.Applied(
    applied.Step,
    applied.last_only,
    parts=lambda at: at.params.backwards,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD in a loop that marks its last backward pass; compare each step with
    plain torch's gradients."""
    from scenarios.deepspeed import _manual_steps as manual_steps

    zero: dict[str, Any] = {"stage": ctx.params.zero_stage}
    if ctx.params.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    manual_steps.train(ctx, "marked", zero)
