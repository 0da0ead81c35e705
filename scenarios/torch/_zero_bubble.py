"""Did each stage apply plain torch's gradient under a schedule that splits the backward pass?

A rank records ``schedule`` with the number of backward passes that were split (``halves``);
``stage``, for each of its stages in each step, with ``applied.Step``; and ``step``, with the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from harness.bugs import api
from scenarios.common import applied, plain_loss

STAGES = 2
"""On each rank."""


@dataclass(frozen=True)
class Stage(applied.Step):
    """What a stage applied."""

    stage: api.Count

    def __str__(self) -> str:
        return f"stage {self.stage} on {super().__str__()}"


S = TypeVar("S", bound=Stage)


@dataclass(frozen=True)
class Split(applied.Applied[S]):
    """The oracle of scenarios in which stages apply another gradient than plain torch's."""

    kind = "stage"
    words: Callable[[Sequence[S], api.Records], Iterable[str]] = applied.of_first
    checks: Sequence[api.Check] = (plain_loss.loss_unlike_reference,)
    schedule: api.Facts = field(default_factory=dict)
    """What is recorded of the schedule besides."""

    def plan(self, at: api.Position) -> api.Plan:
        """The schedule; each stage of this rank in each step; and the loss."""
        steps = api.each(at.params.steps)
        kind = {"type": api.exactly(f"Schedule{at.params.schedule}"), "halves": api.COUNT}
        loss = {"loss": api.maybe(api.SIZE), "reference_loss": api.SIZE}
        return {
            "schedule": api.Kind({**kind, **self.schedule}),
            "stage": api.Kind(self.shapes(at), [step for step in steps for _ in range(STAGES)]),
            "step": api.Kind(loss, steps),
        }

    def odd(self, records: api.Records) -> Iterable[str]:
        return list(plain_loss.loss_wrong(records))[:1]
