"""Steps of SGD over a linear map under DeepSpeed, beside plain torch's gradients.

Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import linear, plain_torch
from scenarios.deepspeed import _regression as regression


def train(
    ctx: api.Context, distance: float, noise: float, micro_batches: int = 1, **config: Any
) -> None:
    """Fit a linear map, see ``linear.batches``, and record each step; ``config`` goes to DeepSpeed.

    The parameters ``batch``, ``steps`` and ``lr`` are the scenario's.
    """
    p = ctx.params
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            regression.sgd(p.lr),
            train_micro_batch_size_per_gpu=p.batch,
            gradient_accumulation_steps=micro_batches,
            **config,
        )
    data = linear.batches(ctx, engine.module, ctx.world_size * p.batch, distance, noise)
    for step in api.each(p.steps):
        rows = [next(data) for _ in range(micro_batches)]
        update = plain_torch.Update(
            plain_torch.loss_of(engine.module, linear.loss), engine.module, *rows
        )
        losses = [regression.step(ctx, engine, part) for part in rows]
        ctx.record("step", step, loss=sum(losses) / len(losses), **update.facts(p.lr))
