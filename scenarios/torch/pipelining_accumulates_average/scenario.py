"""A pipeline schedule that is called k times before a step divides old gradients again and again.

Gradient accumulation with ``torch.distributed.pipelining`` means several calls of
``schedule.step()`` and one step of the optimizer. Each call divides by the number of its
micro-batches, as the default ``scale_grads=True`` promises. But it divides everything that was
accumulated so far. With 4 micro-batches the first of two calls counts a quarter of what it should,
the first of three a sixteenth. So the model learns almost only from the last call. The losses are
right.

torchtitan had this in all its pipelines until September 2025. It now passes ``scale_grads=False``
and divides the loss itself.

Root cause: the schedule divides ``p.grad`` of each stage after the last backward pass of a call.
``p.grad`` then holds the gradients of earlier calls, too, which were divided already.

torch 2.15.0 still has the bug: as released, it is the buggy variant. The fixed variant is our
remedy, in two functions: the schedule divides the loss of each micro-batch, and the stage no longer
divides gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from harness.bugs import api
from scenarios.common import applied, plain_loss
from scenarios.common.line_edits import calling, left_out

if TYPE_CHECKING:
    from scenarios.common.plain_torch import Plain


def loss_divided(function: Any) -> api.Edits:
    """The schedule divides the loss of each micro-batch before its backward pass."""
    import libcst as cst
    import libcst.matchers as m

    losses = m.Subscript(m.Attribute(attr=m.Name("_internal_losses")))
    for line in m.findall(function, m.SimpleStatementLine([m.Return()])):
        for loss in m.findall(line, losses):
            code = cst.Module([]).code_for_node(loss)
            count = "(self._n_microbatches if self.scale_grads else 1)"
            yield loss, cst.parse_expression(f"{code} / {count}")


def gradients_kept(function: Any) -> api.Edits:
    """The stage no longer divides what its parameters have accumulated."""
    yield from left_out(calling(function, "div_"))


def on(schedule: str) -> dict[str, Any]:
    """The parameters of a variant with another schedule."""
    return {"schedule": schedule}


@dataclass(frozen=True)
class Step(applied.Step):
    """What each rank's stages applied."""

    loss: Annotated[float | None, api.maybe(api.SIZE)]
    decayed: applied.Single
    """Beside the calls' decayed sum."""
    calls: api.Count


def decayed_sum(step: Step, _: api.Records) -> bool:
    """A step applied another gradient than plain torch's: the calls' decayed sum."""
    return step.decayed.times(1)


def schedule(at: api.Position) -> api.Plan:
    """The schedule's class, and whether it divides gradients."""
    kind = api.exactly(f"Schedule{at.params.schedule}")
    return {"schedule": api.Kind({"type": kind, "scales": api.FLAG})}


oracle = applied.Applied(
    Step,
    decayed_sum,
    parts=lambda at: at.params.calls,
    also=schedule,
    loss="whole",
    words=applied.of_first,
    reason="exactly that follows if each call divides what earlier calls have accumulated by "
    "{micro_batches}",
)


def run(ctx: api.Context) -> None:
    """Train a pipeline over both ranks, with several calls of the schedule in a step."""
    import torch
    import torch.distributed as dist

    from scenarios.common import linear, plain_torch
    from scenarios.torch import _pipeline as pipeline

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    parts = p.calls if p.scale_grads else p.calls * p.micro_batches

    def loss(outputs: Any, labels: Any) -> Any:
        return linear.loss(outputs, labels) / parts

    run = pipeline.Pipeline(ctx, p.schedule, p.micro_batches, loss, scale_grads=p.scale_grads)
    ctx.record("schedule", type=type(run.schedule).__name__, scales=run.schedule.scale_grads)
    optimizer = torch.optim.SGD(run.parameters(), lr=p.lr)
    for step in api.each(p.steps):
        batches = [pipeline.rows(ctx, p.rows * p.micro_batches) for _ in range(p.calls)]
        before = run.weights()
        plain = plain_torch.differentiate(
            plain_torch.loss_of(run.whole, linear.loss), before, batches
        )
        losses = [run.step(batch) for batch in batches]
        reports = [loss for loss in losses if loss is not None]
        optimizer.step()
        optimizer.zero_grad()
        after = run.of_rank(run.weights())
        before = run.of_rank(before)
        expected = plain_torch.Plain(plain.losses, [run.of_rank(dict(g)) for g in plain.micro])
        ctx.record(
            "step",
            step,
            loss=parts * sum(reports) / len(reports) if reports else None,
            **plain_torch.facts(expected, before, after, p.lr),
            decayed=plain_torch.facts(_decayed(expected, p.micro_batches), before, after, p.lr),
            calls=len(losses),
        )


def _decayed(plain: Plain, micro_batches: int) -> Plain:
    """The calls' mean if each further call divides the earlier gradient by its micro-batches."""
    end = len(plain.micro) - 1
    shares = [micro_batches ** -(end - call) for call in range(end + 1)]
    parts = list(zip(shares, plain.micro, strict=True))
    mean = {name: sum(s * g[name] for s, g in parts) / len(parts) for name in plain.micro[0]}
    return type(plain)(plain.losses, [mean])


def exercised(records: api.Records) -> api.Exercise:
    """There were several calls in each step, and the schedule scaled gradients."""
    calls = {step.calls for step in records.typed(Step)}
    schedule = records.of("schedule", 0)[0]
    text = f"{schedule['type']} was called {min(calls)} times for each step, with scale_grads "
    text += "on" if schedule["scales"] else "off"
    return api.Exercise.of(min(calls) > 1 and schedule["scales"], text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The losses are right, and fall or rise with the rows alone."""
    of_last_rank = api.Records(
        {max(records.ranks): records.by_rank[max(records.ranks)]}, records.params
    )
    return plain_loss.loss_unlike_reference(of_last_rank)


picture = api.bars(
    "How much of each call's gradient was applied in the first step",
    "with the bug each further call divides what earlier calls have accumulated",
    lambda records: (
        (f"call {number}", share)
        for number, share in enumerate(records.of("step", 0)[0]["micro"], 1)
    ),
    "times the right gradient",
    {"right": 1.0},
)
