"""With precomputed reference log-probabilities, DPO uses the trained model as the reference.

Users precompute them to train without a reference model in memory. The training then has another
loss: at each step the reference is the policy itself. The loss is log 2 = 0.6931 in every step, all
margins are 0, and nothing holds the policy near the model that it started from. The weights do
move, as DPO moves them in its first step.

Root cause: trl 0.12 computes the log-probabilities and adds them to the dataset as columns, but its
collator drops these columns. The trainer finds none in a batch, and computes them again: with the
reference model if there is one, otherwise with the policy. The fix in 0.13.0 keeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from harness.bugs import api
from scenarios.common import applied


@dataclass(frozen=True)
class Step(applied.Step):
    micro_batches: Annotated[int, api.exactly(1)]
    own: applied.Single
    """Beside DPO with the policy itself as reference."""


def self_referenced(step: Step, _: api.Records) -> bool:
    """Each update is that of DPO with the policy itself as reference, whose loss is log 2."""
    log_2 = api.near(step.own.reference_loss, math.log(2), within=1e-6)
    return step.own.times(1) and log_2


def first_step_wrong(records: api.Records) -> dict[str, bool]:
    """The first step is right, as the policy is still the reference."""
    first_step = records.typed(Step)[0]
    return {"the first step is not that of plain torch": not first_step.times(1)}


oracle = applied.Applied(
    Step,
    self_referenced,
    parts=lambda at: 1,
    reason="each step is right for a reference that is the policy itself",
    checks=[first_step_wrong],
)


def run(ctx: api.Context) -> None:
    """Train a tiny model on preferences; compare each step with both references."""
    import torch

    from scenarios.trl import _preferences as preferences

    class Watch(preferences.Watch):
        def facts(self) -> dict[str, object]:
            return {**super().facts(), "own": self.compared(self.weights)}

    p = ctx.params
    with ctx.phase("init"):
        policy = preferences.model(ctx)
        optimizer = torch.optim.SGD(policy.parameters(), lr=p.lr)
        Watch(ctx, policy, optimizer)
        reference = preferences.model(ctx) if p.reference == "given" else None
        trainer = preferences.trainer(
            ctx, policy, optimizer, reference, 1, p.steps, precompute_ref_log_probs=True
        )
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """No reference model was given, and the policy left the one that it started from."""
    loss = records.typed(Step)[-1].reference_loss
    return api.Exercise.needs(
        records.params.reference == "none", "a reference model was given"
    ) & api.Exercise.of(
        not api.near(loss, math.log(2), within=1e-3),
        f"the loss of the last step should be {loss:.4f}, no longer log 2",
        "the policy hardly moved",
    )
