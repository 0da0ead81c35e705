"""Finds the place where a BROKEN layout parts from the reference.

The first broken relation says most of it. For a wrong gradient, the modules are watched in three
more runs; where all of them agree, the gradients of the micro-batches say the rest: they are
recorded on each rank before any reduction.
"""

from __future__ import annotations

from dataclasses import replace

from harness.bugs.api.numbers import near
from harness.rank import compare
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import (
    BROKEN_RELATIONS,
    NEAR,
    Place,
    Stage,
    of_stage,
    undetermined,
)
from harness.training.probe.compare.gradients import are_level, weights_in
from harness.training.probe.compare.reference import Moment
from harness.training.probe.compare.relations import BETWEEN
from harness.training.probe.layouts import (
    AGAINST,
    COMPILE,
    RANKS_RESUME,
    SEEDS,
    reference,
    without_a_stop,
)
from harness.training.probe.modes import WITH_DROPOUT
from harness.training.probe.runner import Run
from harness.training.probe.session import Session
from harness.training.probe.where.digests import Recorded
from harness.training.probe.where.modules import Evidence, first_place, unlike_factors

FACTOR = 1e-3
"""The part of a gradient in other directions that a factor may leave."""


def locate(comparison: Compared, session: Session) -> Place:
    """The place where a layout with a broken relation parts from the reference. A wrong gradient
    needs three more runs, up to the wrong step."""
    place = _stage_of_relation(comparison) or _place_of_gradient(comparison, session)
    return replace(place, layout=comparison.layout.name)


def _place_of_gradient(comparison: Compared, session: Session) -> Place:
    moment, kind = comparison.moment, comparison.layout.kind
    if moment is None and kind == COMPILE:
        return undetermined("probe does not look into compiled code")
    if moment is None:
        return undetermined("no step of it was compared")
    if max(len(one.clips) for one in moment.ranks) > len(moment.expected.clips):
        return of_stage(Stage.CLIPPING, ": a step clips them more often than in the reference")
    by_rank = kind == RANKS_RESUME
    runs = _watched(moment, session, by_rank)
    if any(run.failure for run in runs):
        why = "the model could not be watched"
        return undetermined(why) if by_rank else stage_of_gradients(moment)
    base, perturbed, recorded = (Recorded(run, session.settings.same_rows) for run in runs)
    # The types of another environment may have fewer bits.
    coarsest = max(one.coarse for one in moment.ranks)
    is_coarser = kind == AGAINST and coarsest > moment.expected.coarse
    evidence = Evidence(recorded, base, perturbed, _off(moment), coarsest if is_coarser else 0.0)
    place = first_place(evidence) or _by_factor(evidence, moment, by_rank)
    if place is None and by_rank:
        place = undetermined("every module agrees with the reference")
    return place or stage_of_gradients(moment)


def _stage_of_relation(comparison: Compared) -> Place | None:
    """The stage of the first broken relation; None for a gradient, which may be wrong in many. A
    loss alone harms nothing, so what follows it counts."""
    faults = [one for one in comparison.broken if one.relation != "loss"] or comparison.broken
    relation, text = faults[0].relation, faults[0].text
    if relation == "gradient":
        return None
    if relation == BETWEEN:
        text = "the weights between two steps, which something else than the optimizer changes"
        return Place(Stage.WEIGHTS, text)
    if relation == WITH_DROPOUT:
        return Place(Stage.BACKWARD, "the backward of what draws random numbers, such as dropout")
    stage = BROKEN_RELATIONS[relation].stage
    if stage is None:
        return undetermined(f"nothing is known about the stage of: {relation}")
    if relation == "weights" and comparison.layout.resumed:
        stage = Stage.CHECKPOINT
    elif relation == "samples" and text.startswith("a step came after"):
        stage = Stage.ACCUMULATION
    return of_stage(stage)


def _watched(moment: Moment, session: Session, by_rank: bool) -> list[Run]:
    """The reference, the same moved by rounding, and the layout, each up to the wrong step."""
    base = (without_a_stop if by_rank else reference)(session.settings)
    base, layout = (
        one.again("watched", steps=moment.number + 1 - one.first, places=True)
        for one in (replace(base, one_order=moment.layout.one_order), moment.layout)
    )
    layouts = base, base.again("moved by rounding", perturb=SEEDS[0]), layout
    session.start(*layouts)
    return [session.run(one) for one in layouts]


def _off(moment: Moment) -> float:
    """How far a gradient is from the reference's, as a part of it."""
    quantity = moment.gradient_quantity
    expected = moment.owned(0, moment.expected.tensors(quantity))
    off = []
    for step in moment.ranks:
        gradient = step.tensors(quantity)
        difference = {n: gradient[n] - t if n in gradient else t for n, t in expected.items()}
        off.append(compare.norm(difference))
    size = compare.norm(expected)
    return max(off) / size if size else 1.0


def _by_factor(evidence: Evidence, moment: Moment, by_rank: bool) -> Place | None:
    """The loss, if its factors explain the gradient; what follows, if they are right; None if they
    are not known."""
    if unlike_factors(evidence):
        return of_stage(Stage.LOSS, ": the micro-batches have unlike factors")
    factors = [*(evidence.factors or {}).values()]
    if not factors or by_rank:
        return None
    ranks = 1 if moment.same_rows else moment.layout.rank_factor
    mean = sum(factors) / len(factors) / ranks
    is_right = near(mean, 1.0, within=NEAR)
    if not is_right:
        part = compare.share(*moment.pair(0, moment.gradient_quantity))
        if part.is_factor and near(part.ratio, mean, share=NEAR):
            return of_stage(Stage.LOSS)
        is_sum = near(mean * ranks, 1.0, within=NEAR)
        late = moment.ranks[0].stage is not None and near(mean, moment.layout.k, share=NEAR)
        if not (is_sum or late):
            return None
    if moment.reference.steps[0].unlike:
        return undetermined("a module depends by design on how rows are divided")
    has_parts = all(any(one.parts) for one in moment.ranks)
    if is_right and moment.layout.rank_factor > 1 and (moment.same_rows or has_parts):
        return stage_of_gradients(moment)
    return _after_backward(moment)


def stage_of_gradients(moment: Moment) -> Place:
    """The stage in which a gradient becomes wrong, by those of the micro-batches."""
    quantity = moment.gradient_quantity
    expected = moment.expected.tensors(quantity)
    if moment.same_rows and moment.layout.world > 1:
        return undetermined("the ranks have parts of the model, not of the rows")
    if not all(any(one.parts) for one in moment.ranks):
        return undetermined("the gradients of single micro-batches are not known")
    parts = [part for one in moment.ranks for part in one.parts]
    mean = {
        n: sum((part[n] for part in parts if n in part), tensor * 0) / len(moment.ranks)
        for n, tensor in expected.items()
    }
    if not compare.astray(mean, expected, moment.spread(quantity)):
        return _after_backward(moment)
    part = compare.share(mean, expected)
    reduced = compare.share(moment.ranks[0].tensors(quantity), expected)
    if part.is_factor and part.aside < FACTOR:
        summed = near(part.ratio * moment.layout.rank_factor, 1.0, within=NEAR)
        if summed and not near(reduced.ratio, part.ratio, share=NEAR):
            return _after_backward(moment)  # the ranks' gradients are to be summed
        return of_stage(Stage.LOSS)
    weights = weights_in(moment, expected)
    if weights and not are_level(weights.values()):
        return of_stage(Stage.LOSS, ": the micro-batches have unlike weights")
    return undetermined("each micro-batch has another gradient than in the reference")


def _after_backward(moment: Moment) -> Place:
    """The stage between the backward and the step, if every micro-batch's gradient is right."""
    if moment.layout.rank_factor == 1:
        return of_stage(Stage.ACCUMULATION)
    if moment.layout.k == 1:
        return of_stage(Stage.REDUCTION)
    weights = weights_in(moment, moment.ranks[0].tensors(moment.gradient_quantity))
    by_rank = ([w for (r, _), w in weights.items() if r == n] for n in range(len(moment.ranks)))
    several = [each for each in by_rank if len(each) > 1]
    if several and all(map(are_level, several)):
        return of_stage(Stage.REDUCTION)
    if several:
        return of_stage(Stage.ACCUMULATION, ", or their reduction over the ranks")
    return of_stage(Stage.REDUCTION, ", or the accumulation before it")
