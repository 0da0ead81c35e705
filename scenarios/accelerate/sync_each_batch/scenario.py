"""sync_each_batch=True makes accelerate step at each micro-batch, so that nothing is accumulated.

With 3 accumulation steps, a training takes three times as many steps of the optimizer as it should,
each with a third of the gradient of a single micro-batch. For AdamW, which hardly depends on the
size of a gradient, these are steps of full size from a third of the intended batch. A prepared
scheduler ends three times too early. The losses are right. This affects users who set
``sync_each_batch`` to save memory: without it, FSDP keeps whole gradients between micro-batches.

Root cause: ``accumulate()`` forces ``sync_gradients`` to True so that it never enters ``no_sync``.
But the prepared optimizer and scheduler read the same mark, as permission to step. The fix leaves
the mark alone, and only enters no ``no_sync``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks

ROWS = 16
"""Rows of a micro-batch."""


def alone(step: applied.Step, records: api.Records) -> bool:
    """Each micro-batch applies its own gradient at once, divided by the accumulation steps, and
    nothing of the micro-batches before it."""
    share = len(step.micro) / records.params.accumulation
    return step.has([*[0] * (len(step.micro) - 1), share], within=1e-2)


def updates(records: api.Records) -> int:
    """How many micro-batches changed the weights."""
    return sum(step.applied > 0 for step in records.typed(applied.Step))


@dataclass(frozen=True)
class Windows(applied.Applied[applied.Step]):
    """The micro-batches of a window are one update: the last one applies their mean."""

    unit = "times the right number of updates"

    def plan(self, at: api.Position) -> api.Plan:
        """Each micro-batch, with its share and those before it in its window."""
        micro_batches = at.params.updates * at.params.accumulation
        return {"step": api.Kind(self.shapes(at), api.each(micro_batches))}

    def is_right(self, step: applied.Step, records: api.Records) -> bool:
        is_last = len(step.micro) == records.params.accumulation
        return step.times(1) if is_last else step.applied == 0

    def error(self, step: applied.Step, records: api.Records) -> float:
        return updates(records) / float(records.params.updates)

    def describe(self, wrong_steps: Sequence[applied.Step], records: api.Records) -> Iterator[str]:
        yield f"{updates(records)} updates, where {records.params.updates} are right"


oracle = Windows(
    applied.Step,
    alone,
    facts=lambda at: {"loss": api.NUMBER},
    checks=[usual_checks.loss_ends_higher],
    picture=api.bars(
        "Micro-batches that change the weights",
        "with the bug each micro-batch moves the weights, not only the last of each window",
        lambda records: [("updates", float(updates(records)))],
        "updates",
    ),
)


def run(ctx: api.Context) -> None:
    """Fit a linear map under accumulate(); compare each micro-batch's update with plain torch."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin
    from torch.utils.data import DataLoader

    from scenarios.common import linear, plain_torch

    p = ctx.params
    with ctx.phase("init"):
        plugin = GradientAccumulationPlugin(p.accumulation, sync_each_batch=p.sync_each_batch)
        accelerator: Any = Accelerator(
            cpu=ctx.lane is api.Lane.CPU, gradient_accumulation_plugin=plugin
        )
        plain = linear.model()
        sgd = torch.optim.SGD(plain.parameters(), lr=p.lr)
        data = next(linear.batches(ctx, plain, ROWS * p.accumulation * p.updates, 20.0, 0.1))
        rows: Any = [*zip(*data, strict=True)]
        model, optimizer, loader = accelerator.prepare(plain, sgd, DataLoader(rows, ROWS))
    window: list[linear.Rows] = []
    for step, batch in enumerate(loader, 1):
        window.append(batch)
        update = plain_torch.Update(plain_torch.loss_of(plain, linear.loss), plain, *window)
        with accelerator.accumulate(model):
            loss = linear.loss(model(batch[0]), batch[1])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        ctx.record("step", step, loss=float(loss.detach()), **update.facts(p.lr))
        if len(window) == p.accumulation:
            window = []
