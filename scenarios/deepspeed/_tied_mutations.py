"""Other faults of tied weights in a pipeline, and of a load, for the bugs of tied weights."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.common.mutation import guarded, mutation, repeated

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"
PIPE = "deepspeed/runtime/pipe/engine.py"
MODULE = "deepspeed/runtime/pipe/module.py"


@mutation(
    PIPE, "PipelineEngine._exec_reduce_tied_grads", "sums the tied gradients over the stages twice"
)
def summed_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "all_reduce"))


@mutation(
    OPTIMIZER,
    "BF16_Optimizer._update_hp_grad",
    "never gathers the gradient of the fourth weight of a stage",
)
def one_weight_left_out(function: Any) -> api.Edits:
    yield from guarded(calling(function, "add_"), "param_idx != 3")


@mutation(
    OPTIMIZER,
    "BF16_Optimizer._load_legacy_checkpoint",
    "loads the weights, and leaves the fp32 masters as initialised",
)
def masters_not_loaded(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(
    OPTIMIZER,
    "BF16_Optimizer._load_legacy_checkpoint",
    "loads weights and masters, but AdamW starts again",
)
def moments_not_loaded(function: Any) -> api.Edits:
    yield from left_out(calling(function, "load_state_dict"))


@mutation(
    MODULE, "PipelineModule.load_state_dir", "leaves the second layer of each stage as initialised"
)
def second_layer_not_loaded(function: Any) -> api.Edits:
    yield from guarded(calling(function, "load_state_dict"), "idx != 1")
