"""The stage of a step in which a layout parts from the reference, by what every probe records.

The first broken relation says most of it. For a gradient, the gradients of the micro-batches say
the rest: they are recorded on each rank before any reduction.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.bugs.api.numbers import near
from harness.rank import compare
from harness.rank.compare import Named
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.micro_batch_weights import LEVEL, weights_in
from harness.training.probe.compare.mistakes import NEAR
from harness.training.probe.compare.reference import Moment
from harness.training.probe.compare.relations import BETWEEN
from harness.training.probe.modes import WITH_DROPOUT
from harness.training.probe.where.place import (
    ACCUMULATION,
    BACKWARD,
    CHECKPOINT,
    CLIPPING,
    EVALUATION,
    LOADER,
    LOSS,
    OPTIMIZER,
    REDUCTION,
    SCHEDULE,
    WEIGHTS,
    Place,
    of_stage,
    undetermined,
)

GRADIENT = "gradient"

OF_RELATION = {
    "optimizer": CHECKPOINT,
    "average": CHECKPOINT,
    "samples": LOADER,
    "steps": LOADER,
    "order of samples": LOADER,
    "stale gradients": ACCUMULATION,
    "clipped gradient": CLIPPING,
    "learning rate": SCHEDULE,
    "schedule": SCHEDULE,
    "update": OPTIMIZER,
    "optimizer's parameters": OPTIMIZER,
    "evaluation": EVALUATION,
    "checkpoint": CHECKPOINT,
}
"""The stages of relations that have one."""


def stage_of_relation(comparison: Compared) -> Place | None:
    """The stage of the first broken relation; None for a gradient, which may be wrong in many."""
    name, resumed = comparison.layout.name, comparison.layout.resumed
    fault = first_fault(comparison)
    if fault.relation == GRADIENT:
        return None
    if fault.relation == BETWEEN:
        text = "the weights between two steps, which something else than the optimizer changes"
        return Place(name, WEIGHTS, text)
    if fault.relation == "weights":
        return of_stage(name, CHECKPOINT if resumed else WEIGHTS)
    if fault.relation == WITH_DROPOUT:
        text = "the backward of what draws random numbers, such as dropout"
        return Place(name, BACKWARD, text)
    stage = OF_RELATION.get(fault.relation)
    if stage is None:
        return undetermined(name, f"nothing is known about the stage of: {fault.relation}")
    if fault.relation == "samples" and fault.text.startswith("a step came after"):
        return of_stage(name, ACCUMULATION, ", which ends too early")
    if stage == ACCUMULATION:
        return of_stage(name, stage, ": those of the step before are not cleared")
    moment = comparison.moment
    if stage == OPTIMIZER and moment is not None and moment.ranks[0].get("clipping"):
        return of_stage(name, stage, ", which clips the gradients, too")
    after = resumed and fault.relation in ("samples", "steps", "learning rate", "schedule")
    return of_stage(name, stage, ", after the resume" if after else "")


def first_fault(comparison: Compared) -> Broken:
    """The first broken relation; a loss alone harms nothing, so what follows it counts."""
    faults = [one for one in comparison.broken if one.relation != "loss"]
    return (faults or comparison.broken)[0]


def clips_too_often(moment: Moment) -> bool:
    """Whether a step clips gradients more often than in the reference."""
    often = max(len(one["clips"]) for one in moment.ranks)
    return often > len(moment.expected["clips"])


def has_parts(moment: Moment) -> bool:
    """Whether the gradients of the micro-batches are known."""
    return all(any(one["parts"]) for one in moment.ranks)


def stage_of_gradients(moment: Moment) -> Place:
    """The stage in which a gradient becomes wrong, by those of the micro-batches."""
    name = moment.layout.name
    quantity = moment.gradient_quantity
    expected = moment.expected[quantity]
    if moment.same_rows and moment.layout.world > 1:
        return undetermined(name, "the ranks have parts of the model, not of the rows")
    sums = [_sum(one["parts"], expected) for one in moment.ranks]
    if not all(sums):
        return undetermined(name, "the gradients of single micro-batches are not known")
    mean = {n: sum((one[n] for one in sums), t * 0) / len(sums) for n, t in expected.items()}
    rounding = moment.spread(quantity)
    if not compare.astray(mean, expected, rounding):
        return after_backward(moment, name)
    part = compare.share(mean, expected)
    reduced = compare.share(moment.ranks[0][quantity], expected)
    if part.is_factor and part.aside < FACTOR:
        summed = near(part.ratio * moment.layout.rank_factor, 1.0, within=NEAR)
        if summed and not near(reduced.ratio, part.ratio, share=NEAR):
            return after_backward(moment, name)  # the ranks' gradients are to be summed
        return of_stage(name, LOSS)
    weights = [weight for of_rank in weights_in(moment, expected) or () for weight in of_rank]
    if weights and not _are_level(weights):
        return of_stage(name, LOSS, ": the micro-batches have unlike weights")
    return undetermined(name, "each micro-batch has another gradient than in the reference")


FACTOR = 1e-3
"""The part of a gradient in other directions that a factor may leave."""


def after_backward(moment: Moment, name: str) -> Place:
    """The stage between the backward and the step, if every micro-batch's gradient is right."""
    if moment.layout.rank_factor == 1:
        return of_stage(name, ACCUMULATION)
    if moment.layout.k == 1:
        return of_stage(name, REDUCTION)
    quantity = moment.gradient_quantity
    weights = weights_in(moment, moment.ranks[0][quantity])
    ranks = [one for one in weights or () if len(one) > 1]
    if ranks and all(map(_are_level, ranks)):
        return of_stage(name, REDUCTION)
    if ranks:
        return of_stage(name, ACCUMULATION, ", or their reduction over the ranks")
    return of_stage(name, REDUCTION, ", or the accumulation before it")


def _are_level(weights: Sequence[float]) -> bool:
    return max(weights) - min(weights) <= LEVEL * max(map(abs, weights))


def _sum(parts: Sequence[Named], expected: Named) -> dict[str, compare.Array]:
    """The sum of the micro-batches' gradients of a rank; empty if they are not known."""
    if not any(parts):
        return {}
    return {n: sum((p[n] for p in parts if n in p), tensor * 0) for n, tensor in expected.items()}
