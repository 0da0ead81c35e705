"""What else could be wrong with the gradients of tied weights, and of all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness import api
from scenarios.common.edits import calling, followed, guarded, repeated, setting, stepping
from scenarios.common.mutation import mutation

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"
PIPE = "deepspeed/runtime/pipe/engine.py"


@mutation(
    "summed_twice",
    PIPE,
    "PipelineEngine._exec_reduce_tied_grads",
    "sums the tied gradients over the stages twice",
)
def summed_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "all_reduce"))


@mutation(
    "stepped_twice", OPTIMIZER, "BF16_Optimizer.step", "takes each step of the optimizer twice"
)
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(stepping(function))


@mutation(
    "one_weight_left_out",
    OPTIMIZER,
    "BF16_Optimizer._update_hp_grad",
    "never gathers the gradient of the fourth weight of a stage",
)
def left_out(function: Any) -> api.Edits:
    yield from guarded(calling(function, "add_"), "param_idx != 3")


@mutation(
    "gradients_halved",
    OPTIMIZER,
    "BF16_Optimizer._update_hp_grad",
    "halves all gradients, which AdamW does not show",
)
def halved(function: Any) -> api.Edits:
    yield from followed(calling(function, "add_"), "hp_grad.data.div_(2)")


@mutation(
    "last_micro_batch",
    OPTIMIZER,
    "BF16_Optimizer._update_hp_grad",
    "the bug, and only the last micro-batch counts",
    variant="buggy",
)
def last_micro_batch(function: Any) -> api.Edits:
    yield from followed(setting(function, "hp_grad"), "hp_grad.data.zero_()")


MUTATIONS = (
    summed_twice,
    stepped_twice,
    left_out,
    halved,
    last_micro_batch,
    replace(stepped_twice, variant="buggy"),
)
