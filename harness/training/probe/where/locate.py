"""Finds the place where a BROKEN layout parts from the reference."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from harness.bugs.api.numbers import near
from harness.rank import compare
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.mistakes import NEAR
from harness.training.probe.compare.reference import Moment
from harness.training.probe.layouts import (
    AGAINST,
    COMPILE,
    RANKS_RESUME,
    SEEDS,
    Layout,
    Settings,
    reference,
    without_a_stop,
)
from harness.training.probe.runner import Run
from harness.training.probe.where.digests import Recorded
from harness.training.probe.where.modules import Evidence, distances, first_place, unlike_factors
from harness.training.probe.where.place import CLIPPING, LOSS, Place, of_stage, undetermined
from harness.training.probe.where.stages import (
    after_backward,
    clips_too_often,
    has_parts,
    stage_of_gradients,
    stage_of_relation,
)

Start = Callable[[Layout], Future[Run]]


def locate(
    comparison: Compared, settings: Settings, of_reference: Start, of_layout: Start
) -> Place:
    """The place where a layout with a broken relation parts from the reference. A wrong gradient
    needs three more runs, up to the wrong step."""
    if (place := stage_of_relation(comparison)) is not None:
        return place
    moment, name = comparison.moment, comparison.layout.name
    if moment is None and comparison.layout.kind == COMPILE:
        return undetermined(name, "probe does not look into compiled code")
    if moment is None:
        return undetermined(name, "no step of it was compared")
    if clips_too_often(moment):
        return of_stage(name, CLIPPING, ": a step clips them more often than in the reference")
    runs = _record(comparison, moment, settings, of_reference, of_layout)
    by_rank = comparison.layout.kind == RANKS_RESUME
    if any(run.failure for run in runs):
        return _by_stage(moment, name, by_rank, "the model could not be watched")
    base, perturbed, layout = (Recorded(run, settings.same_rows) for run in runs)
    coarser = _coarser(moment) if comparison.layout.kind == AGAINST else 0.0
    evidence = Evidence(name, layout, base, perturbed, _off(moment), coarser)
    if (place := first_place(evidence)) is not None:
        return place
    place = _by_factor(evidence, moment, by_rank) or _by_stage(
        moment, name, by_rank, "every module agrees with the reference"
    )
    return replace(place, layout=name, distances=tuple(distances(evidence)))


def _record(
    comparison: Compared, moment: Moment, settings: Settings, of_reference: Start, of_layout: Start
) -> list[Run]:
    """The reference, the same moved by rounding, and the layout, each up to the wrong step."""
    actual = moment.layout
    is_by_rank = comparison.layout.kind == RANKS_RESUME
    base = without_a_stop(settings) if is_by_rank else reference(settings)
    base = replace(
        base,
        name=f"{base.name}, watched",
        steps=moment.number + 1,
        one_order=actual.one_order,
        epoch=False,
        relations=(),
        places=True,
    )
    shifted_layout = replace(base, name=f"{base.name}, moved by rounding", perturb=SEEDS[0])
    watched = replace(
        actual,
        name=f"{actual.name}, watched",
        steps=moment.number + 1 - actual.first,
        epoch=False,
        places=True,
    )
    starts = [of_reference(base), of_reference(shifted_layout), of_layout(watched)]
    return [start.result() for start in starts]


def _off(moment: Moment) -> float:
    """How far a gradient is from the reference's, as a part of it."""
    quantity = moment.gradient_quantity
    expected = moment.owned(0, moment.expected[quantity])
    off = []
    for step in moment.ranks:
        gradient = step[quantity]
        difference = {n: gradient[n] - t if n in gradient else t for n, t in expected.items()}
        off.append(compare.norm(difference))
    size = compare.norm(expected)
    return max(off) / size if size else 1.0


def _coarser(moment: Moment) -> float:
    """One ulp of 1 in the coarsest type of what modules return; 0 if the reference has it, too."""
    coarsest = max(one["coarse"] for one in moment.ranks)
    expected: float = moment.expected["coarse"]
    return coarsest if coarsest > expected else 0.0


def _by_factor(evidence: Evidence, moment: Moment, by_rank: bool) -> Place | None:
    """The loss, if its factors explain the gradient; what follows, if they are right; None if they
    are not known."""
    name = evidence.layout
    if unlike_factors(evidence):
        return of_stage(name, LOSS, ": the micro-batches have unlike factors")
    factors = [*(evidence.factors or {}).values()]
    if not factors or by_rank:
        return None
    ranks = 1 if moment.same_rows else moment.layout.rank_factor
    mean = sum(factors) / len(factors) / ranks
    is_right = near(mean, 1.0, within=NEAR)
    if not is_right:
        quantity = moment.gradient_quantity
        part = compare.share(moment.ranks[0][quantity], moment.owned(0, moment.expected[quantity]))
        if part.is_factor and near(part.ratio, mean, share=NEAR):
            return of_stage(name, LOSS)
        is_sum = near(mean * ranks, 1.0, within=NEAR)
        late = moment.ranks[0].get("stage") is not None and near(mean, moment.layout.k, share=NEAR)
        if not (is_sum or late):
            return None
    if moment.reference.steps[0].get("unlike"):
        return undetermined(name, "a module depends by design on how rows are divided")
    among_ranks = moment.layout.rank_factor > 1
    if is_right and among_ranks and (moment.same_rows or has_parts(moment)):
        return stage_of_gradients(moment)
    return after_backward(moment, name)


def _by_stage(moment: Moment, name: str, by_rank: bool, why: str) -> Place:
    return undetermined(name, why) if by_rank else replace(stage_of_gradients(moment), layout=name)
