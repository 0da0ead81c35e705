"""By what does the Trainer divide with gradient accumulation: each update, and the logged loss?

A rank records ``step``, and at the end ``logged``, the losses that the Trainer has logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from harness.bugs import api
from scenarios.common import applied, counted
from scenarios.transformers import _normaliser as normaliser


@dataclass(frozen=True)
class Step(applied.Step):
    """What ``_trainer_rows`` records of a step."""

    tokens: Annotated[list[int], api.many(api.COUNT, least=1)]
    losses: Annotated[list[float], api.many(api.NUMBER, least=1)]
    """Of each micro-batch."""
    aside: api.Size
    """How far the weights moved since the last step."""
    rows: Annotated[list[int], api.many(api.WHOLE, least=1)]
    """The numbers of the rows; -1 is a row that is not in the dataset."""


@dataclass(frozen=True)
class Accumulated(applied.Applied[Step]):
    """The oracle of scenarios whose updates are multiplied or divided by the micro-batches.

    Its judges also say what the Trainer logs then, see ``logged_as``."""

    right: Sequence[str] = (normaliser.TOKENS,)
    """The kinds of the logged loss, unless a bug of the catalogue gives another one."""
    words: Callable[[Sequence[Step], api.Records], Iterable[str]] = applied.of_each
    checks: Sequence[api.Check] = (applied.same_direction,)

    def plan(self, at: api.Position) -> api.Plan:
        """Each step, with what it applied; at the end, what the Trainer has logged."""
        logged = {"losses": api.many(api.NUMBER, at.params.steps)}
        return {**super().plan(at), "logged": api.Kind(logged)}

    def odd(self, records: api.Records) -> Iterator[str]:
        """What is wrong besides the size of an update."""
        steps = records.typed(Step)
        rows = [row for step in steps for row in step.rows]
        if sorted(rows) != list(range(len(rows))):
            different = len({row for row in rows if row >= 0})
            yield f"the model was given {len(rows)} rows, only {different} of them different"
        for step in steps:
            if step.aside:
                yield f"the weights changed by up to {step.aside:.3g} before step {step.step}"
            if len(step.rows) != len(steps[0].rows):
                size, first_size = len(step.rows), len(steps[0].rows)
                yield f"step {step.step} has {size} rows, but the first step had {first_size}"
        judges = (self.documented, *self.instead.values())
        bug = any(all(judge(step, records) for step in steps) for judge in judges)
        if not bug and not logged_as(records, *self.right):
            yield f"the logged loss is not {' or '.join(self.right)}"

    @staticmethod
    def exercised(records: api.Records) -> api.Exercise:
        """Each step of the optimizer came after several micro-batches: as many as were
        requested."""
        return counted.accumulated(records, [len(step.micro) for step in records.typed(Step)])


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on the same rows."""
    from scenarios.common.hf_trainer import logged
    from scenarios.transformers import _trainer_rows as rows

    with ctx.phase("init"):
        trainer = rows.trainer(ctx)
    with ctx.phase("steps"):
        trainer.train()
    ctx.record("logged", losses=logged(trainer))


def logged_as(records: api.Records, *normalisers: str) -> bool:
    """Whether one of these normalisers gives each loss that the Trainer has logged."""
    steps, logged = records.typed(Step), records.one("logged")
    losses = logged["losses"] if logged else []
    return len(losses) == len(steps) and any(
        all(
            name in normaliser.explains(loss, step.losses, step.tokens)
            for loss, step in zip(losses, steps, strict=True)
        )
        for name in normalisers
    )
