"""What else could be wrong with a training in fp16, its loss scale, and its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed, setting
from scenarios.common.mutation import mutation, repeated
from scenarios.deepspeed._mutations import no_clipping, rank_0_alone_steps

OPTIMIZER = "deepspeed/runtime/zero/stage_1_and_2.py"
SCALER = "deepspeed/runtime/fp16/loss_scaler.py"
ZERO = "DeepSpeedZeroOptimizer"


@mutation(OPTIMIZER, f"{ZERO}._optimizer_step", "takes each step twice")
def stepped_twice(function: Any) -> api.Edits:
    yield from repeated(calling(function, "step", of="optimizer"))


@mutation(
    OPTIMIZER,
    f"{ZERO}.unscale_and_clip_grads",
    "the bug, and gradients keep the loss scale, which AdamW does not show",
    variant="buggy",
)
def not_unscaled(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    grad = m.Attribute(m.Name("grad"), m.Name("data"))
    line = m.SimpleStatementLine([m.Expr(m.Call(m.Attribute(grad, m.Name("mul_"))))])
    for node in m.findall(function, line):
        yield node, cst.parse_statement("pass")


@mutation(
    SCALER,
    "DynamicLossScaler.update_scale",
    "the bug, and the scale falls to a quarter at a time",
    variant="buggy",
)
def scale_quartered(function: Any) -> api.Edits:
    lines = setting(function, "next_scale")
    yield from followed(lines, "next_scale = max(next_scale / 2, self.min_scale)")


MUTATIONS = (
    no_clipping,
    stepped_twice,
    rank_0_alone_steps,
    not_unscaled,
    scale_quartered,
    replace(stepped_twice, variant="buggy"),
)
