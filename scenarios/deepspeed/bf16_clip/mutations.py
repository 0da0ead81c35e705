"""What else could be wrong with clipping in BF16_Optimizer, and with the steps that follow it."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.common.mutation import guarded, mutation, repeated

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"
UTILS = "deepspeed/runtime/utils.py"


@mutation(
    UTILS,
    "clip_tensors_by_global_norm",
    "divides by the clipping factor, so that large gradients grow",
)
def clip_turned_round(function: Any) -> api.Edits:
    import libcst.matchers as m

    quotient = m.BinaryOperation(operator=m.Divide())
    node: Any
    for node in m.findall(function, quotient):
        yield node, node.with_changes(left=node.right, right=node.left)


@mutation(OPTIMIZER, "BF16_Optimizer.step", "never clips")
def no_clipping(function: Any) -> api.Edits:
    yield from left_out(calling(function, "clip_tensors_by_global_norm"))


@mutation(OPTIMIZER, "BF16_Optimizer.step", "clips twice by the same factor")
def clipped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "clip_tensors_by_global_norm"))


@mutation(
    OPTIMIZER,
    "BF16_Optimizer.step",
    "only rank 0 takes the optimizer's step, so that copies differ as with the bug",
)
def rank_0_alone_steps(function: Any) -> api.Edits:
    yield from guarded(calling(function, "step"), "dist.get_rank() == 0")


@mutation(
    OPTIMIZER,
    "BF16_Optimizer.step",
    "updates the fp32 master weights, but never copies them to the bf16 weights",
)
def stale_weights(function: Any) -> api.Edits:
    yield from left_out(calling(function, "update_lp_params"))


@mutation(
    OPTIMIZER,
    "BF16_Optimizer._update_hp_grad",
    "with the bug: each gradient is also added to its buffer twice",
    variant="buggy",
)
def gradients_doubled(function: Any) -> api.Edits:
    yield from repeated(calling(function, "add_"))


@mutation(
    OPTIMIZER,
    "BF16_Optimizer.step",
    "with the bug: ranks other than 0 do not clip any gradient",
    variant="buggy",
)
def rank_0_clips_alone(function: Any) -> api.Edits:
    yield from guarded(calling(function, "clip_tensors_by_global_norm"), "dist.get_rank() == 0")


MUTATIONS = (
    clip_turned_round,
    no_clipping,
    clipped_twice,
    rank_0_alone_steps,
    stale_weights,
    gradients_doubled,
    rank_0_clips_alone,
)
