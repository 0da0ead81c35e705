"""Zero-bubble pipeline schedules count a weight's gradient too often if a stage uses it twice.

A stage may use a weight twice, one use after the other, as with shared layers. A zero-bubble
schedule splits its backward pass: first come the gradients of the inputs, later those of the
weights. In the second part the earlier use of the weight was counted twice, in all stages but the
first one. The losses are right, and the gradients have a wrong direction.

Root cause: the second part starts at both uses at once, each with the gradient that the first part
has saved there. The gradient that starts at the later use also flows back to the earlier one, but
the gradient that was saved there already contains it.

torch 2.13.0 has the fix: at each use the incoming gradient is replaced by the saved one. The edit
removes that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import applied
from scenarios.torch import _zero_bubble as zero_bubble

if TYPE_CHECKING:
    from torch import Tensor

    from scenarios.common.plain_torch import Plain


def not_replaced(function: Any) -> api.Edits:
    """Incoming gradients are not replaced by those that were saved."""
    import libcst as cst
    import libcst.matchers as m

    several = m.Comparison(m.Call(m.Name("len")), [m.ComparisonTarget(m.GreaterThan())])
    for branch in m.findall(function, m.If(test=several)):
        yield cst.ensure_type(branch, cst.If).test, cst.Name("False")


@dataclass(frozen=True)
class Stage(zero_bubble.Stage):
    twice: applied.Single
    """Beside a gradient that counts the early use of the weight twice."""


def counted_twice(stage: Stage, _: api.Records) -> bool:
    """All stages but the first applied a gradient that counts the early use of a weight twice."""
    return stage.twice.times(1)


oracle = zero_bubble.Split(
    Stage,
    counted_twice,
    parts=lambda at: 1,
    reason="exactly that follows if all stages but the first count the early use twice",
    schedule={"shared": api.FLAG},
    picture=api.bars(
        "The part of the first applied gradient in a wrong direction",
        "with the bug all stages but the first have a wrong gradient",
        lambda records: (
            (f"stage {one['stage']}", one["off"]) for one in records.of("stage") if one["step"] == 1
        ),
        "of its norm",
    ),
)


def run(ctx: api.Context) -> None:
    """Train a pipeline over both ranks whose stages have two maps in a row."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from scenarios.common import linear, plain_torch
    from scenarios.torch import _pipeline as pipeline

    class Twice(nn.Module):
        """Two maps in a row, which may be the same one."""

        def __init__(self, shared: bool) -> None:
            super().__init__()
            self.early = nn.Linear(pipeline.FEATURES, pipeline.FEATURES)
            self.late = self.early if shared else nn.Linear(pipeline.FEATURES, pipeline.FEATURES)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.late(self.early(inputs).tanh()).tanh()
            return outputs

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    pipe = pipeline.Pipeline(ctx, p.schedule, p.micro_batches, block=lambda: Twice(p.shared))
    kind = type(pipe.schedule).__name__
    ctx.record("schedule", type=kind, halves=pipe.halves, shared=p.shared)
    apart = nn.Sequential(*(Twice(False) for _ in pipe.owners)).to(ctx.device)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=p.lr)
    for step in api.each(p.steps):
        batch = pipeline.rows(ctx, p.rows * p.micro_batches)
        before = pipe.weights()
        uses = {n: before.get(n, before[n.replace("late", "early")]) for n in _names(apart)}
        plain = plain_torch.differentiate(plain_torch.loss_of(apart, linear.loss), uses, [batch])
        loss = pipe.step(batch)
        optimizer.step()
        optimizer.zero_grad()
        after = pipe.weights()
        for stage in pipe.blocks:
            was, current = (pipeline.of_stage(stage, weights) for weights in (before, after))
            expected, twice = (
                _counting(plain, was, early, p.shared) for early in (1, 2 if stage else 1)
            )
            ctx.record(
                "stage",
                step,
                stage=stage,
                **plain_torch.facts(expected, was, current, p.lr),
                twice=plain_torch.facts(twice, was, current, p.lr),
            )
        ctx.record("step", step, loss=loss, reference_loss=plain.loss)


def _names(module: Any) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def _counting(plain: Plain, names: Iterable[str], early: int, shared: bool) -> Plain:
    """The gradients of these weights; a shared weight's early use counts ``early`` times."""
    (of,) = plain.micro
    uses = {n: early * of[n] + of[n.replace("early", "late")] if shared else of[n] for n in names}
    return type(plain)(plain.losses, [uses])


def exercised(records: api.Records) -> api.Exercise:
    """The schedule split backward passes of stages that use a weight twice."""
    schedule = records.of("schedule", 0)[0]
    weights = "one weight, used twice" if schedule["shared"] else "two weights"
    text = f"{schedule['type']} split {schedule['halves']} backward passes; a stage has {weights}"
    return api.Exercise.of(schedule["halves"] > 0 and schedule["shared"], text)
