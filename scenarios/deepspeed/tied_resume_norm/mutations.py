"""What else could get lost between a save and a load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness import api
from scenarios.common.edits import calling, guarded, left_out, repeated, stepping
from scenarios.common.mutation import mutation

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"
MODULE = "deepspeed/runtime/pipe/module.py"


@mutation(
    "masters_not_loaded",
    OPTIMIZER,
    "BF16_Optimizer._load_legacy_checkpoint",
    "loads the weights, and leaves the fp32 masters as initialised",
)
def no_masters(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(
    "moments_not_loaded",
    OPTIMIZER,
    "BF16_Optimizer._load_legacy_checkpoint",
    "loads weights and masters, but AdamW starts again",
)
def no_moments(function: Any) -> api.Edits:
    yield from left_out(calling(function, "load_state_dict"))


@mutation(
    "second_layer_not_loaded",
    MODULE,
    "PipelineModule.load_state_dir",
    "leaves the second layer of each stage as initialised",
)
def no_layer(function: Any) -> api.Edits:
    yield from guarded(calling(function, "load_state_dict"), "idx != 1")


@mutation(
    "stepped_twice",
    OPTIMIZER,
    "BF16_Optimizer.step",
    "takes each step of the optimizer twice, before the save and after the load",
)
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(stepping(function))


MUTATIONS = (
    no_masters,
    no_moments,
    no_layer,
    replace(no_masters, variant="buggy"),
    replace(no_moments, variant="buggy"),
    replace(stepped_twice, variant="buggy"),
)
