"""With gradient accumulation keras decays the weights, and clips, at each micro-batch.

An optimizer with ``gradient_accumulation_steps=k`` must do with k micro-batches what it does with
one batch. It decays the weights k times in each update, so the decay is k times as strong as
configured. With ``clipnorm``, ``clipvalue`` or ``global_clipnorm`` it clips each micro-batch by
itself: the mean of the clipped gradients is applied, and not the clipped mean. No error is raised.

Root cause: ``BaseOptimizer.apply`` clips and decays before it asks whether this micro-batch updates
the weights. The fix moves both into the update.
"""

from __future__ import annotations

import math

from harness.bugs import api
from scenarios.keras import _accumulated as accumulated


def each_micro_batch(step: accumulated.Step, records: api.Records) -> bool:
    """Each update decayed the weights once for each micro-batch, and applied the mean of the
    gradients that were clipped one by one."""
    p = records.params

    def clipped(gradient: accumulated.Vector) -> list[float]:
        norm = math.hypot(*gradient)
        factor = min(1.0, p.clipnorm / norm) if p.clipnorm else 1.0
        return [factor * value for value in gradient]

    decay = (1 - p.weight_decay * p.lr) ** p.accumulation
    gradient = accumulated.mean([clipped(one) for one in step.micro])
    pairs = zip(step.before, gradient, strict=True)
    return accumulated.equal(step.weights, [decay * w - p.lr * g for w, g in pairs])


def still(records: api.Records) -> dict[str, bool]:
    """The weights change with each update."""
    unchanged = any(step.before == step.weights for step in records.typed(accumulated.Step))
    return {"an update leaves the weights as they are": unchanged}


oracle = accumulated.Accumulated(
    each_micro_batch,
    "weights",
    checks=[still],
    picture=accumulated.far(
        "weights", "with the bug the weights leave those that an update with the mean gives"
    ),
)


def run(ctx: api.Context) -> None:
    """Update with the optimizer's own accumulation, and with the mean of the micro-batches."""
    p = ctx.params
    options = {"weight_decay": p.weight_decay, "clipnorm": p.clipnorm}
    accumulated.train(ctx, **{name: value for name, value in options.items() if value})


def exercised(records: api.Records) -> api.Exercise:
    """Several micro-batches made an update, with decay or clipping."""
    p = records.params
    text = f"weight_decay {p.weight_decay:g}, clipnorm {p.clipnorm:g}"
    return accumulated.accumulated(records) & api.Exercise.of(
        p.weight_decay > 0 or p.clipnorm > 0, f"{p.accumulation} micro-batches; {text}"
    )
