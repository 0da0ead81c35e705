"""What else could be wrong with a pipeline's accumulation, and with the loss that it reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed, setting
from scenarios.common.mutation import mutation, repeated

ENGINE = "deepspeed/runtime/engine.py"
PIPE = "deepspeed/runtime/pipe/engine.py"
OPTIMIZER = "deepspeed/runtime/zero/stage_1_and_2.py"


@mutation(
    PIPE, "PipelineEngine._aggregate_total_loss", "tells half of the loss, and trains as it should"
)
def loss_halved(function: Any) -> api.Edits:
    yield from followed(setting(function, "loss"), "loss = loss / 2")


@mutation(
    ENGINE,
    "DeepSpeedEngine._scale_loss_by_gas",
    "divides by twice the micro-batches, on every stage alike",
)
def divided_by_more(function: Any) -> api.Edits:
    yield from followed(setting(function, "scaling_factor"), "scaling_factor = 2 * scaling_factor")


@mutation(PIPE, "PipelineEngine._next_batch", "sees the first micro-batch again and again")
def same_micro_batch(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    again = cst.parse_expression("self.__dict__.setdefault('first', next(self.data_iterator))")
    for call in m.findall(function, m.Call(m.Name("next"))):
        yield call, again


@mutation(
    OPTIMIZER, "DeepSpeedZeroOptimizer._optimizer_step", "takes each step of the optimizer twice"
)
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "step", of="optimizer"))


MUTATIONS = (
    loss_halved,
    divided_by_more,
    same_micro_batch,
    stepped_twice,
    replace(stepped_twice, variant="buggy"),
    replace(loss_halved, variant="buggy"),
)
