"""What else could be wrong with FP16_UnfusedOptimizer, and with stage 1 in its place."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed, left_out, setting
from scenarios.common.mutation import mutation, repeated
from scenarios.deepspeed._mutations import no_clipping, rank_0_alone_steps

OPTIMIZER = "deepspeed/runtime/fp16/unfused_optimizer.py"
UNFUSED = "FP16_UnfusedOptimizer"


@mutation(
    OPTIMIZER,
    f"{UNFUSED}.unscale_and_clip_grads",
    "the bug, and gradients keep the loss scale, which AdamW does not show",
    variant="buggy",
)
def not_unscaled(function: Any) -> api.Edits:
    yield from left_out(calling(function, "mul_"))


@mutation(
    OPTIMIZER,
    f"{UNFUSED}.step",
    "the bug, and never copies the fp32 masters to the weights",
    variant="buggy",
)
def stale_weights(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(
    OPTIMIZER,
    f"{UNFUSED}._update_scale",
    "the bug, and the scale falls to a quarter at a time",
    variant="buggy",
)
def scale_quartered(function: Any) -> api.Edits:
    lines = setting(function, "cur_scale")
    yield from followed(lines, "self.cur_scale = max(self.cur_scale / 2, self.min_loss_scale)")


@mutation(OPTIMIZER, f"{UNFUSED}.step", "the bug, and takes each step twice", variant="buggy")
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "step", of="optimizer"))


MUTATIONS = (
    not_unscaled,
    stale_weights,
    scale_quartered,
    stepped_twice,
    no_clipping,
    rank_0_alone_steps,
)
