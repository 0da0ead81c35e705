"""DPO with Liger's loss: under DDP no gradient is averaged, so each rank trains its own model.

``use_liger_kernel=True`` saves the memory of the logits. With DDP the replicas drift apart from the
first step on. Each rank's loss falls, no warning appears, and a checkpoint of the first rank has
seen the rows of the first rank alone.

Root cause: DDP averages the gradients of a backward pass only if its own forward ran before. With
Liger's loss, DPOTrainer takes the model out of DDP, calls its layers below the head, and gives the
head's weights to the loss. It goes through the wrapper's forward only under ZeRO 3 and FSDP. The
fix in 1.14.0 does so for each wrapper. The loss came with 0.19.0; from 0.29 to 1.8 the trainer took
DDP for the model, which raised an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bugs import api
from scenarios.common import applied


@dataclass(frozen=True)
class Step(applied.Step):
    own: applied.Single
    """Beside the rank's own gradient."""
    apart: Annotated[float, api.alike(api.SIZE)]
    """The greatest difference between the weights of any two ranks."""
    parted: Annotated[bool, api.alike(api.FLAG)]
    """Whether the ranks' gradients differ."""


def own_alone(step: Step, _: api.Records) -> bool:
    """The step applied the rank's own gradient, and not the mean over the ranks."""
    return step.own.times(1) and step.apart > 0


oracle = applied.Applied(
    Step,
    own_alone,
    parts=lambda at: at.world_size,
    words=applied.of_first,
    reason="exactly that follows if each rank applies its own gradient alone",
)


def run(ctx: api.Context) -> None:
    """Train a tiny model on preferences by DDP; compare each step with plain torch on all rows."""
    from scenarios.trl.dpo_liger_unreduced import training

    training.train(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """The loss was Liger's, and the ranks' gradients differed."""
    ranks = len(records.ranks)
    differed = ranks > 1 and all(step.parted for step in records.typed(Step))
    return api.Exercise.needs(records.params.liger, "the loss was that of the logits") & (
        api.Exercise.of(
            differed,
            f"the gradients of {ranks} ranks differed",
            f"{ranks} ranks had equal gradients",
        )
    )
