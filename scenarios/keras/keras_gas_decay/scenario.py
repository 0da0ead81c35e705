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
from dataclasses import dataclass

from harness.bugs import api
from scenarios.keras import _accumulated as accumulated


@dataclass
class Params(accumulated.Params):
    weight_decay: float = api.knob(0.1, least=0, about="of the optimizer; 0 is off")
    clipnorm: float = api.knob(0.0, least=0, about="of the optimizer; 0 is off")


SCENARIO = api.Scenario(
    report=(
        "Gradient accumulation: clip and decay only when the weights are updated",
        "https://github.com/keras-team/keras/pull/19998",
    ),
    fix="https://github.com/keras-team/keras/pull/19998",
    symptom="with gradient accumulation, weight decay is applied at each micro-batch, and "
    "gradients are clipped before they are accumulated",
    trigger="gradient_accumulation_steps above 1 with weight decay or clipping",
    remedy="divide weight_decay by gradient_accumulation_steps; there is none for clipping",
    pins={"keras": "3.4.1"},
    releases="keras>=3.0.2",
    absent=(accumulated.BEFORE,),
    harm="ruins training",
    visibility="silent",
    settings={
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("keras' optimizer accumulates, and decays or clips"),
    },
    files=("keras/src/optimizers/base_optimizer.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("3.5.0"),
        "control": api.control("3.4.1 without accumulation", params={"accumulation": 1}),
        "plain": api.control("3.4.1 without decay and clipping", params={"weight_decay": 0.0}),
        "clipping": api.expect_symptom(
            about="3.4.1 with clipping", params={"weight_decay": 0.0, "clipnorm": 1.0}
        ),
    },
)


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
