"""Does each rank's part of the weights get the mean of all ranks' gradients? ``_partition`` records
``step``, the scenario's only one."""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied


def own_gradient(step: api.Record, _: api.Records) -> bool:
    """Each rank's part of the weights got that rank's own gradient. The losses are right."""
    return applied.times(step["local"], 1)


def updates_unlike(records: api.Records) -> dict[str, bool]:
    """The replicas are equal: grading compares what the ranks recorded."""
    norms = {step["applied"] for step in records.of("step")}
    return {"the ranks applied different updates": len(norms) > 1}


oracle = applied.Applied(
    own_gradient,
    parts=lambda at: at.params.micro_batches,
    facts=lambda at: {"parted": api.FLAG, "local": api.held(applied.shapes(1))},
    replicas=True,
    loss="parts",
    then="exactly that follows if each rank uses its own gradient in the place of the mean",
    checks=[updates_unlike],
)


def parted(records: api.Records) -> api.Exercise:
    """There were several ranks, and their gradients differed."""
    ranks, differed = len(records.ranks), records.of("step")[0]["parted"]
    text = f"the gradients of {ranks} ranks differed"
    return api.Exercise.of(ranks > 1 and differed, text, f"{ranks} rank's gradient")
