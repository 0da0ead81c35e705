"""DPOTrainer sums the gradients of accumulated micro-batches instead of averaging them.

With ``gradient_accumulation_steps=4`` every update is 4 times the right one. With transformers 4.46
and 4.47 the logged loss is right; with 4.48.1 it is 4 times too large as well. AdamW hardly depends
on the size of a gradient; SGD, clipping and the logged norm do.

Root cause: in transformers 4.46 and 4.47 the Trainer divides no loss by the micro-batches. Since
4.48 it divides the loss of models whose ``forward`` takes no keywords for the loss. LLaMA takes
such keywords, and divides its own loss by the number of items. But DPO computes its loss from the
model's logits, and divides by nothing. The fix in trl 0.14.0 tells the Trainer that the model takes
no such keywords. That has no effect with transformers 4.47.1: there 0.14.0 is wrong, too.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied, counted


def logged_unlike(records: api.Records) -> dict[str, bool]:
    """The logged loss shows the bug with some releases of transformers."""
    logged = records.of("logged")[0]["losses"]
    pairs = zip(logged, records.typed(counted.Step), strict=True)
    # The Trainer logs four decimals.
    fired = any(not api.near(loss, step.reference_loss, within=1e-4) for loss, step in pairs)
    return {"the logged loss is not plain torch's": fired}


oracle = applied.Applied(
    counted.Step,
    applied.multiplied,
    also=lambda at: {"logged": api.Kind({"losses": api.many(api.NUMBER, at.params.steps)})},
    checks=[applied.same_direction, logged_unlike],
)


def run(ctx: api.Context) -> None:
    """Train a tiny model on preferences; compare each applied gradient with plain torch's."""
    import torch

    from scenarios.common.hf_trainer import logged
    from scenarios.trl import _preferences as preferences

    p = ctx.params
    with ctx.phase("init"):
        policy = preferences.model(ctx)
        optimizer = torch.optim.SGD(policy.parameters(), lr=p.lr)
        preferences.Watch(ctx, policy, optimizer)
        trainer = preferences.trainer(
            ctx, policy, optimizer, preferences.model(ctx), p.accumulation, p.steps
        )
    with ctx.phase("steps"):
        trainer.train()
    ctx.record("logged", losses=logged(trainer))


def exercised(records: api.Records) -> api.Exercise:
    """Each step of the optimizer came after several micro-batches: as many as were requested."""
    return counted.accumulated(
        records, [step.micro_batches for step in records.typed(counted.Step)]
    )
