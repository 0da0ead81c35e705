"""What else could be wrong with a warmup, and with the steps that use its rates."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed, setting
from scenarios.common.mutation import guarded, mutation, repeated
from scenarios.deepspeed._mutations import not_reduced

ENGINE = "deepspeed/runtime/engine.py"
SCHEDULES = "deepspeed/runtime/lr_schedules.py"


@mutation(SCHEDULES, "WarmupLR._get_gamma", "warms up at half the rates")
def warmup_halved(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.BinaryOperation(operator=m.Divide())):
        yield node, cst.BinaryOperation(node, cst.Divide(), cst.Integer("2"))


@mutation(ENGINE, "DeepSpeedEngine._take_model_step", "takes each step twice, at the right rate")
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "step", of="optimizer"))


@mutation(
    ENGINE, "DeepSpeedEngine.allreduce_and_copy", "steps at the right rate with twice the gradient"
)
def gradient_doubled(function: Any) -> api.Edits:
    yield from followed(calling(function, "copy_"), "buf.mul_(2)")


@mutation(ENGINE, "DeepSpeedEngine._take_model_step", "leaves the fourth step out")
def one_step_left_out(function: Any) -> api.Edits:
    yield from guarded(calling(function, "step", of="optimizer"), "self.global_steps != 3")


@mutation(
    SCHEDULES, "WarmupLR.__init__", "the bug, and the schedule begins a step later", variant="buggy"
)
def begins_late(function: Any) -> api.Edits:
    lines = setting(function, "last_batch_iteration")
    yield from followed(lines, "self.last_batch_iteration = last_batch_iteration - 1")


MUTATIONS = (
    warmup_halved,
    stepped_twice,
    gradient_doubled,
    one_step_left_out,
    not_reduced,
    begins_late,
)
