"""With a pipeline, torchtitan trains on the sum of the losses of all tokens, not on their mean.

This affected trainings with torchtitan's Trainer and pipeline parallelism. The gradients are as
many times too long as a step has tokens, often a million. The logged loss is right, so its curve
looks like that of another run. Only the logged norm of the gradient shows the number. Gradients are
clipped to a norm of 1 by default, so each step has the full length, also late in a training, where
most steps of a run without a pipeline are shorter. A run with a pipeline and one without it are not
the same training.

Root cause: from 0.2.2 on, the loss function returns the sum over tokens. Without a pipeline, the
trainer divides it by the number of tokens before the backward pass. With one, the schedule runs the
backward passes itself, and the trainer divides the loss afterwards, for the log alone. From 0.3.0
on, the loss function gets the number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import features


@dataclass(frozen=True)
class Stage(features.Feature):
    """The oracle: each rank has the gradients of its part of the layers."""

    reason: str = "exactly that follows if each is that of the sum over the tokens of the step"
    checks: Sequence[api.Check] = ()

    def plan(self, at: api.Position) -> api.Plan:
        """Each step, with the gradients of the rank's own layers."""
        facts = features.Step.shapes(gradients=features.COMPARED)
        return {"step": api.Kind(facts, api.each(at.params.steps))}


oracle = Stage()


def run(ctx: api.Context) -> None:
    """Train torchtitan's small LLaMA with its Trainer; the whole model in one process is right."""
    from scenarios.torchtitan import _trainer

    p = ctx.params
    stages = ctx.world_size if p.pipeline else 1
    _trainer.train(ctx, p.length, [[p.length] * p.rows], "sum", pipeline_parallel_degree=stages)
