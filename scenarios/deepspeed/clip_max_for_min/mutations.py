"""What else could be wrong with clipping in fp32, and with the gradients that are clipped."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed, left_out, setting
from scenarios.common.mutation import guarded, mutation, repeated
from scenarios.deepspeed._mutations import not_reduced

ENGINE = "deepspeed/runtime/engine.py"
UTILS = "deepspeed/runtime/utils.py"


@mutation(ENGINE, "DeepSpeedEngine._take_model_step", "never clips")
def no_clipping(function: Any) -> api.Edits:
    yield from left_out(calling(function, "clip_fp32_gradients"))


@mutation(UTILS, "clip_grad_norm_", "multiplies each gradient twice")
def factor_squared(function: Any) -> api.Edits:
    yield from repeated(calling(function, "mul_"))


@mutation(UTILS, "clip_grad_norm_", "takes the norm for twice what it is")
def norm_doubled(function: Any) -> api.Edits:
    yield from followed(setting(function, "scaled_norm"), "scaled_norm = 2 * scaled_norm")


@mutation(ENGINE, "DeepSpeedEngine._take_model_step", "clips, and never steps")
def step_left_out(function: Any) -> api.Edits:
    yield from left_out(calling(function, "step", of="optimizer"))


@mutation(UTILS, "clip_grad_norm_", "the bug, but on rank 0 only", variant="buggy")
def rank_0_clips_alone(function: Any) -> api.Edits:
    yield from guarded(calling(function, "mul_"), "dist.get_rank() == 0")


MUTATIONS = (
    no_clipping,
    factor_squared,
    norm_doubled,
    step_left_out,
    not_reduced,
    rank_0_clips_alone,
)
