"""Did each stage apply plain torch's gradient under a schedule that splits the backward pass?

A rank records ``schedule`` with the number of backward passes that were split (``halves``);
``stage``, for each of its stages in each step, with ``applied.facts``; and ``step``, with the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.bugs import api
from scenarios.common import applied, usual_checks

STAGES = 2
"""On each rank."""


@dataclass(frozen=True)
class Split(usual_checks.Checked):
    """The oracle of scenarios in which stages apply another gradient than plain torch's."""

    documented: Callable[[api.Record], bool]
    """Whether a stage's step is wrong as documented. Its docstring is the symptom on the bug's
    page."""
    why: str
    """What explains it: "exactly that follows if ..."."""
    facts: Callable[[api.Position], api.Facts]
    """What is recorded of a stage."""
    picture: api.Pictures
    checks: Sequence[usual_checks.Check] = (usual_checks.loss_unlike_reference,)
    """Checks that miss the bug."""
    schedule: api.Facts = field(default_factory=dict)
    """What is recorded of the schedule besides."""
    last: Callable[[Sequence[api.Record]], str] = lambda stages: ""
    """A line for the end of the finding."""

    def plan(self, at: api.Position) -> api.Plan:
        """The schedule; each stage of this rank in each step; and the loss."""
        steps = api.each(at.params.steps)
        kind = {"type": api.exactly(f"Schedule{at.params.schedule}"), "halves": api.COUNT}
        loss = {"loss": api.maybe(api.SIZE), "reference_loss": api.SIZE}
        stage = {"stage": api.COUNT, **self.facts(at)}
        return {
            "schedule": api.Kind({**kind, **self.schedule}),
            "stage": api.Kind(stage, [step for step in steps for _ in range(STAGES)]),
            "step": api.Kind(loss, steps),
        }

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that stages applied another gradient, or that replicas are apart."""
        stages = records.of("stage")
        return applied.explained(
            stages,
            self.documented,
            self.why,
            sound=not any(usual_checks.loss_unlike_reference(records).values()),
            parted=[one for one in stages if one.get("apart")],
            last=self.last,
            words=lambda one: f"stage {one['stage']} on {applied.described(one)}",
        )
