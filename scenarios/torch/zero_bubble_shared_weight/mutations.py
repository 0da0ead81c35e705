"""What else could be wrong with a backward pass that is split."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.common.mutation import mutation

STAGE = "torch/distributed/pipelining/stage.py"


@mutation(STAGE, "_PipelineStageBase.scale_grads", "never divides gradients")
def no_scaling(function: Any) -> api.Edits:
    yield from left_out(calling(function, "div_"))


@mutation(
    STAGE,
    "_PipelineStageBase.scale_grads",
    "the bug, and gradients are never divided",
    variant="buggy",
)
def no_scaling_either(function: Any) -> api.Edits:
    yield from left_out(calling(function, "div_"))


@mutation("torch/optim/sgd.py", "SGD.step", "the optimizer never steps")
def never_steps(function: Any) -> api.Edits:
    yield from left_out(calling(function, "sgd"))


MUTATIONS = (no_scaling, no_scaling_either, never_steps)
