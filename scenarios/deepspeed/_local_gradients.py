"""Does each rank's part of the weights get the mean of all ranks' gradients? ``_partition`` records
``step``, the scenario's only one."""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied


@dataclass(frozen=True)
class Step(applied.Step):
    parted: api.Flag
    local: applied.Single
    own: applied.Single | None = None


def own_gradient(step: Step, _: api.Records) -> bool:
    """Each rank's part of the weights got that rank's own gradient. The losses are right."""
    return step.local.times(1)


def updates_unlike(records: api.Records) -> dict[str, bool]:
    """The replicas are equal: grading compares what the ranks recorded."""
    norms = {step.applied for step in records.typed(Step)}
    return {"the ranks applied different updates": len(norms) > 1}


oracle = applied.Applied(
    Step,
    own_gradient,
    parts=lambda at: at.params.micro_batches,
    replicas=True,
    loss="parts",
    reason="exactly that follows if each rank uses its own gradient in the place of the mean",
    checks=[updates_unlike],
)


def parted(records: api.Records) -> api.Exercise:
    """There were several ranks, and their gradients differed."""
    ranks, differed = len(records.ranks), records.typed(Step)[0].parted
    text = f"the gradients of {ranks} ranks differed"
    return api.Exercise.of(ranks > 1 and differed, text, f"{ranks} rank's gradient")
