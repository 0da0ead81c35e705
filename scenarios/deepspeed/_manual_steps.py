"""Steps of a loop that accumulates by itself over a linear map, beside plain torch's gradients.

It divides each loss by the number of backward passes, and calls ``step`` once after them.
``gradient_accumulation_steps`` is 1. Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import linear, plain_torch
from scenarios.deepspeed import _regression as regression


def train(ctx: api.Context, boundary: str, zero: dict[str, Any]) -> None:
    """Fit with SGD under ZeRO with these settings; record each step.

    ``boundary`` says who knows which backward pass is the last: "default" for DeepSpeed, "marked"
    for the loop, "unmanaged" for ``step``.
    """
    p = ctx.params
    config: dict[str, Any] = {}
    if boundary == "unmanaged":
        config["managed_gradient_accumulation"] = False
    engine = regression.engine(
        ctx,
        regression.sgd(p.lr),
        train_micro_batch_size_per_gpu=p.batch,
        zero_allow_untested_optimizer=True,
        zero_force_ds_cpu_optimizer=False,
        zero_optimization=zero,
        **config,
    )
    data = linear.batches(ctx, engine.module, ctx.world_size * p.batch, 5.0, 0.1)
    for step in api.each(p.steps):
        batches = [next(data) for _ in range(p.backwards)]
        update = plain_torch.Update(
            plain_torch.loss_of(engine.module, linear.loss), engine.module, *batches
        )
        losses = []
        for number, rows in enumerate(batches, 1):
            if boundary == "marked":
                engine.set_gradient_accumulation_boundary(number == p.backwards)
            inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in rows)
            loss = linear.loss(engine(inputs), labels)
            engine.backward(loss / p.backwards)
            losses.append(float(loss.detach()))
        engine.step()
        ctx.record("step", step, loss=sum(losses) / len(losses), **update.facts(p.lr))
