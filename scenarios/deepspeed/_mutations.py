"""Other faults of DeepSpeed's steps, for several bugs."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.common.mutation import guarded, mutation

ENGINE = "deepspeed/runtime/engine.py"
ZERO_1_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
ZERO = "DeepSpeedZeroOptimizer"


@mutation(
    ENGINE,
    "DeepSpeedEngine.allreduce_and_copy",
    "the bug, and each rank steps with its own gradient",
    variant="buggy",
)
def not_reduced(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(ZERO_1_2, f"{ZERO}.unscale_and_clip_grads", "never clips")
def no_clipping(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.If(m.Comparison(m.Name("clip")))):
        yield node, node.with_changes(test=cst.Name("False"))


@mutation(
    ZERO_1_2,
    f"{ZERO}._optimizer_step",
    "steps with the part of the weights that rank 0 holds, and with no other",
)
def rank_0_alone_steps(function: Any) -> api.Edits:
    yield from guarded(calling(function, "step", of="optimizer"), "dist.get_rank() == 0")
