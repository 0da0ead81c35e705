"""A training_step without batch_idx trains on the last micro-batch of each window alone.

Lightning lets a module leave out the second parameter of ``training_step``. With
``accumulate_grad_batches=4`` such a module then trains on one of four micro-batches: the gradients
of the others are computed and erased, so the update is about a quarter of the right one. The number
of steps, the losses and the learning rate are right. This affects every user who left the parameter
out and accumulates; with the parameter, all is right.

Root cause: the training loop takes the number of the batch from the arguments of ``training_step``.
If the step does not have it, the loop takes 0. It erases the gradients where that number is a
multiple of ``accumulate_grad_batches``, so it erases them before each micro-batch. The fix hands
the number to the optimization in any case.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied, usual_checks

oracle = applied.Applied(
    applied.Step,
    applied.last_only,
    parts=lambda at: at.params.accumulation,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Lightning; compare each step with plain torch's gradients."""
    from typing import Any

    from scenarios.pytorch_lightning import _accumulating as accumulating

    class Without(accumulating.Map):
        count = 0

        def training_step(self, rows: Any) -> Any:  # type: ignore[override]
            self.count += 1
            return self.trained(rows, self.count - 1)

    accumulating.fit(ctx, accumulating.Map if ctx.params.batch_idx else Without)
