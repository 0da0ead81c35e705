"""GRPO's default loss is divided by the tokens of the whole generation, not of the update.

Each update is the right one times gradient_accumulation_steps / steps_per_generation. A run that
generates for several updates at once (steps_per_generation 4, gradient_accumulation_steps 2) trains
at half of the learning rate. A run that generates more often than it updates (2 and 4) trains at
twice the rate. If the two are equal, which is the default, all is right. The loss of GRPO is near 0
anyway, so it does not show the bug.

Root cause: with ``loss_type="dapo"``, the default, the sum of the tokens' losses is divided by
``num_items_in_batch``. That is the number of tokens of the generation batch, which has
steps_per_generation micro-batches. But an update has gradient_accumulation_steps micro-batches. The
types cispo and vespo have the same line; grpo divides in another way, and is right.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied, counted


def by_window(step: counted.Step, records: api.Records) -> bool:
    """Each update is the right one times gradient_accumulation_steps / steps_per_generation."""
    p = records.params
    return step.times(p.accumulation / p.generation)


oracle = applied.Applied(counted.Step, by_window, checks=[applied.same_direction])


def run(ctx: api.Context) -> None:
    """Train a tiny model on its own completions; compare each applied gradient with torch's."""
    from scenarios.trl.grpo_window_tokens import groups

    p = ctx.params
    with ctx.phase("init"):
        trainer = groups.trainer(ctx, p.loss_type, p.generation, p.accumulation, p.steps)
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """The loss was dapo's, and each update had another number of micro-batches than a
    generation."""
    p = records.params
    counts = sorted({step.micro_batches for step in records.typed(counted.Step)})
    text = f"each update had {counts} micro-batches, and each generation {p.generation}"
    return api.Exercise.needs(
        p.loss_type == "dapo", f"the loss type was {p.loss_type}"
    ) & api.Exercise.of(counts == [p.accumulation] and p.accumulation != p.generation, text)
