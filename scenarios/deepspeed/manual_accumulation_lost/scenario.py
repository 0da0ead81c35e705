"""With several backward passes before a step, ZeRO stages 1 and 2 train the last one alone.

A loop that accumulates by itself, with ``gradient_accumulation_steps`` of 1, is right in plain
torch and at stage 0: it divides each loss by the number of micro-batches, calls ``backward`` for
each, and then ``step`` once. At stages 1 and 2 all gradients but the last are computed and dropped.
The losses are right, all ranks agree, and the training makes progress. open-instruct trained like
this until it was found. In 0.17.5 such a loop is right, and 0.18.2 stops with a TypeError. In
0.18.3 it goes on with the last gradient.

Root cause: with one micro-batch in a step, DeepSpeed takes each backward pass for the last before a
step. At the last one ``independent_gradient_partition_epilogue`` moves the sum of the gradients
to where the step reads it, and begins a new sum. The next backward pass replaces what is there.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks
from scenarios.common.line_edits import left_out


def sum_kept(function: Any) -> api.Edits:
    """The sum of the gradients is kept until the step, which clears it."""
    import libcst.matchers as m

    target = m.AssignTarget(m.Subscript(m.Attribute(attr=m.Name("all_grad_tensors"))))
    line = m.SimpleStatementLine([m.Assign([target], m.Name("None"))])
    yield from left_out(iter(m.findall(function, line)))


oracle = applied.Applied(
    applied.Step,
    applied.last_only,
    parts=lambda at: at.params.backwards,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD in a loop that accumulates by itself; compare each step with plain
    torch's gradients."""
    from scenarios.deepspeed import _manual_steps as manual_steps

    p = ctx.params
    manual_steps.train(ctx, p.boundary, {"stage": p.zero_stage})
