"""With DDP, torchtitan divides each gradient by the number of ranks twice.

This affected trainings with torchtitan's Trainer in which each rank has a copy of the model, and
nothing is sharded. With 8 ranks each gradient is an eighth of the right one. The logged loss is
right. AdamW hardly depends on the size of a gradient, so the loss falls nearly as it should. But
the limit of the gradient norm no longer acts where it should, and the logged norm is too small by
this factor. Other optimizers, such as SGD, take steps that are an eighth as long.

Root cause: from 0.2.2 on, the loss is the sum over a rank's tokens, divided by the tokens of all
ranks. So the gradients of the ranks must be summed. FSDP was set to do that, but DDP still divides
their sum by the number of ranks. The fix replaces DDP by modules that sum, as FSDP does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import features


@dataclass(frozen=True)
class Copies(features.Feature):
    """The oracle: each rank has a copy of the model, and all have the gradient of all rows."""

    reason: str = "exactly that follows if each is {share} times the right one"
    checks: Sequence[api.Check] = ()


oracle = Copies()


def run(ctx: api.Context) -> None:
    """Train torchtitan's small LLaMA with its Trainer, each rank on its own rows; one process with
    the rows of all ranks is right."""
    from scenarios.torchtitan import _trainer

    p = ctx.params
    labels = [[p.length] * p.rows] * ctx.world_size
    kind = "replicate" if p.parallelism == "ddp" else "shard"
    degrees = {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": 1}
    degrees[f"data_parallel_{kind}_degree"] = ctx.world_size
    _trainer.train(ctx, p.length, labels, "divided by the ranks", **degrees)
