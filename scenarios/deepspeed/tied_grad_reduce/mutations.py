"""What else could be wrong with the gradients of tied weights, and of all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed, setting
from scenarios.common.mutation import mutation, repeated
from scenarios.deepspeed._tied_mutations import one_weight_left_out, summed_twice

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"


@mutation(OPTIMIZER, "BF16_Optimizer.step", "takes each step of the optimizer twice")
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "step", of="optimizer"))


@mutation(
    OPTIMIZER, "BF16_Optimizer._update_hp_grad", "halves all gradients, which AdamW does not show"
)
def gradients_halved(function: Any) -> api.Edits:
    yield from followed(calling(function, "add_"), "hp_grad.data.div_(2)")


@mutation(
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
    one_weight_left_out,
    gradients_halved,
    last_micro_batch,
    replace(stepped_twice, variant="buggy"),
)
