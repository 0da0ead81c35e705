"""With static_graph and manual optimization, DDP never averages: each rank trains its own model.

This affects users of Lightning's ``DDPStrategy(static_graph=True)`` whose module uses manual
optimization (``automatic_optimization = False``), as is usual for GANs. Each rank steps with the
gradient of its own rows, so the replicas drift apart from the first step on. Each rank's loss
falls, and a checkpoint holds the first rank's model.

Root cause: with a static graph, DDP reduces the gradients of the first step only when the backward
pass is over, in ``_delay_all_reduce``. DDP's own forward makes sure that this function is called.
With manual optimization Lightning prepares DDP's reducer itself, and nothing calls the function.
Later steps are not reduced either. The fix calls the function after the first backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, plain_loss, usual_checks


@dataclass(frozen=True)
class Step(applied.Step):
    loss: api.Number
    static: api.Flag


def of_own_rows(step: Step, _: api.Records) -> bool:
    """Each rank applied the gradient of its own rows, and nothing of the others'."""
    ranks = len(step.micro)
    return step.has([ranks * (rank == step.rank) for rank in range(ranks)], within=1e-2)


oracle = applied.Applied(
    Step, of_own_rows, parts=lambda at: at.world_size, checks=[usual_checks.loss_ends_higher]
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Lightning; compare each step with plain torch's gradients."""
    from scenarios.pytorch_lightning.static_graph_manual import training

    training.fit(ctx)


def detect(records: api.Records) -> api.Finding | None:
    """Each rank applied the gradient of its own rows, and nothing of the others'."""
    # Once the ranks' weights differ, the mean of their losses is no longer plain torch's.
    finding = oracle.detect(records)
    odd = list(plain_loss.loss_wrong(records, parts=True)) if finding is None else []
    return api.Finding(odd[0], documented=False) if odd else finding


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks optimized by hand, and DDP took the graph for static."""
    p, ranks = records.params, len(records.ranks)
    static = all(step.static for step in records.typed(Step))
    text = f"static graph: {static}; manual optimization: {p.manual}; {ranks} ranks"
    return api.Exercise.of(static and p.manual and ranks > 1, text)
