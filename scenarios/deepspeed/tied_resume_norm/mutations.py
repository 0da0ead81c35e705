"""What else could get lost between a save and a load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling
from scenarios.common.mutation import mutation, repeated
from scenarios.deepspeed._tied_mutations import (
    masters_not_loaded,
    moments_not_loaded,
    second_layer_not_loaded,
)

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"


@mutation(
    OPTIMIZER,
    "BF16_Optimizer.step",
    "takes each step of the optimizer twice, before the save and after the load",
)
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "step", of="optimizer"))


MUTATIONS = (
    masters_not_loaded,
    moments_not_loaded,
    second_layer_not_loaded,
    replace(masters_not_loaded, variant="buggy"),
    replace(moments_not_loaded, variant="buggy"),
    replace(stepped_twice, variant="buggy"),
)
