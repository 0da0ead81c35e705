"""What else could be wrong with FP16_UnfusedOptimizer, and with stage 1 in its place."""

from __future__ import annotations

from typing import Any

from harness import api
from scenarios.common.edits import calling, followed, left_out, repeated, setting, stepping
from scenarios.common.mutation import mutation
from scenarios.deepspeed._mutations import zero_no_clipping, zero_rank_0_alone

OPTIMIZER = "deepspeed/runtime/fp16/unfused_optimizer.py"
UNFUSED = "FP16_UnfusedOptimizer"


@mutation(
    "not_unscaled",
    OPTIMIZER,
    f"{UNFUSED}.unscale_and_clip_grads",
    "the bug, and gradients keep the loss scale, which AdamW does not show",
    variant="buggy",
)
def not_unscaled(function: Any) -> api.Edits:
    yield from left_out(calling(function, "mul_"))


@mutation(
    "stale_weights",
    OPTIMIZER,
    f"{UNFUSED}.step",
    "the bug, and never copies the fp32 masters to the weights",
    variant="buggy",
)
def stale(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(
    "scale_quartered",
    OPTIMIZER,
    f"{UNFUSED}._update_scale",
    "the bug, and the scale falls to a quarter at a time",
    variant="buggy",
)
def quartered(function: Any) -> api.Edits:
    lines = setting(function, "cur_scale")
    yield from followed(lines, "self.cur_scale = max(self.cur_scale / 2, self.min_loss_scale)")


@mutation(
    "stepped_twice",
    OPTIMIZER,
    f"{UNFUSED}.step",
    "the bug, and takes each step twice",
    variant="buggy",
)
def twice(function: Any) -> api.Edits:
    yield from repeated(stepping(function))


MUTATIONS = (not_unscaled, stale, quartered, twice, zero_no_clipping, zero_rank_0_alone)
