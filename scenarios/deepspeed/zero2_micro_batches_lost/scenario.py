"""At ZeRO stage 2, each accumulated micro-batch replaces the one before: only the last is trained.

With gradient accumulation over 4 micro-batches, three of the four are read, computed, and dropped:
each update is a quarter of the last one's gradient. The losses are right, all ranks agree, and the
training makes progress on the rest. The reported gradient norm is too small. Without accumulation,
and at other stages, nothing is lost.

Root cause: with the Muon optimizer, 0.17.6 introduced a second store for the gradients of earlier
micro-batches. But the code still checks the old store for such gradients. The old store is filled
only at the last micro-batch, so each micro-batch counts as the first and overwrites the new store.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied, usual_checks

oracle = applied.Applied(
    applied.Step,
    applied.last_only,
    parts=lambda at: at.params.micro_batches,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD; compare each step with plain torch's gradients."""
    from scenarios.deepspeed import _linear_steps as linear_steps

    p = ctx.params
    zero = {"stage": p.zero_stage}
    linear_steps.train(
        ctx, 5.0, 0.1, p.micro_batches, zero_allow_untested_optimizer=True, zero_optimization=zero
    )
