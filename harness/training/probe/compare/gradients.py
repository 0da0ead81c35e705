"""The relations of gradients: every rank has the reference's, before clipping and after it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from harness.detectors.arithmetic import Projection
from harness.rank import compare
from harness.rank.compare import Named, flat, length
from harness.rank.probe.modes import KEPT, RECOMPUTED
from harness.system.text import several
from harness.training.probe.compare.faults import Broken, several_ranks
from harness.training.probe.compare.reference import Moment

ALIKE = 1e-3
"""If a gradient as a whole is nearer to the reference's than this, its factor says nothing."""

FIT = 0.01
"""The part of a gradient that the micro-batches may leave unexplained."""

LEVEL = 1e-3
"""How far (as a fraction) weights may differ and count as equal."""

Weights = Mapping[tuple[int, int], float]
"""By rank and number of the micro-batch, from 0."""


def gradient(moment: Moment) -> Broken | None:
    """Every rank has the reference's gradient, before clipping if there is any."""
    return _gradient(moment, moment.gradient_quantity, "gradient")


def clipped(moment: Moment) -> Broken | None:
    """After clipping, the optimizer gets the reference's gradient."""
    return _gradient(moment, "grad", "clipped gradient") if moment.clipping else None


def _gradient(moment: Moment, quantity: str, relation: str) -> Broken | None:
    """The gradients that are not the reference's. All wrong ranks are listed; the ratio and the
    parameters are those of the first of them."""
    off = moment.astray(quantity)
    if not off:
        return None
    rank, names = next(iter(off.items()))
    tensors, expected = moment.pair(rank, quantity)
    part = compare.share(tensors, expected)
    clips, expected_clips = moment.ranks[rank].clips, moment.expected.clips
    often = ""
    if len(clips) > len(expected_clips):
        often = f"clipped {len(clips)} times a step, not {len(expected_clips)}; "
    details = [_only_some(moment, tensors, expected, names, part), _unlike_ranks(moment, quantity)]
    if quantity == "grad" and not moment.clipping and not any(details):
        details.append(weights_of_micro_batches(moment, rank))
    if clips and expected_clips:
        norms = [f"{one[0][1]:.4g}" for one in (clips, expected_clips)]
        details.append(f"clipping saw the norm {norms[0]}, in the reference {norms[1]}")
    factor = f"{moment.in_words(part)} the reference's"
    if part.is_factor and _is_alike(part) and len(names) < len(expected):
        count = f"{len(names)} of {len(expected)} parameters"
        factor = f"as a whole about the reference's, but not in {count}"
    return Broken(
        relation,
        f"{several_ranks(off)}: {often}{factor}",
        part.ratio,
        moment.meaning_of(part),
        tuple(names),
        tuple(off),
        tuple(filter(None, details)),
    )


def _is_alike(whole: Projection) -> bool:
    return abs(whole.ratio - 1) < ALIKE


def _only_some(
    moment: Moment, tensors: Named, expected: Named, off: Iterable[str], whole: Projection
) -> str:
    """Which parameters are wrong, if others are right."""
    off = list(off)
    has_one_factor = whole.aside < ALIKE and not _is_alike(whole)
    if len(off) == len(expected) or not whole.right or has_one_factor:
        return ""
    examples = several(f"{n} {moment.in_words(compare.share(tensors, expected, [n]))}" for n in off)
    return f"only {examples}; right: {several([name for name in expected if name not in off])}"


UNLIKE_RANKS = "the ranks have unlike gradients"


def random_draws(moment: Moment, fault: Broken) -> str:
    """Why this mismatch proves nothing: the model drew other random numbers in this layout. Ranks
    that disagree with each other are still wrong."""
    if moment.layout.mode in (KEPT, RECOMPUTED):
        return ""  # on the same ranks and micro-batches, it draws the same
    draws = moment.expected.draws and any(one.draws for one in moment.ranks)
    unlike = any(detail.startswith(UNLIKE_RANKS) for detail in fault.details)
    if not draws or unlike or fault.meaning or "gradient" not in fault.relation:
        return ""
    return (
        "the model draws random numbers itself (masks, noise, dropped layers), others on each rank "
        f"and in each micro-batch: switch that off. Its gradient: {fault.text}"
    )


def _unlike_ranks(moment: Moment, quantity: str) -> str:
    """The message that ranks have unlike gradients, with their mean; empty if not."""
    if moment.layout.world == 1 or moment.same_rows:
        return ""
    expected, rounding = moment.expected.tensors(quantity), moment.spread(quantity)
    tensors, *others = (one.tensors(quantity) for one in moment.ranks)
    if not any(
        compare.astray(other, {**expected, **tensors}, {**dict.fromkeys(tensors, 0.0), **rounding})
        for other in others
    ):
        return ""
    mean = compare.share(moment.mean(quantity, expected), expected)
    text = UNLIKE_RANKS
    if mean.is_factor:
        ratio = moment.in_words(mean.ratio)
        text += f"; their mean is {ratio} the reference's: they are not averaged"
    return text


GRADIENTS = ("gradient", "clipped gradient")
"""The relations of gradients that an optimizer may still average over the ranks."""


def excused_gradients(moment: Moment, faults: Iterable[Broken]) -> list[Broken]:
    """The faults that are excused: gradients may differ between ranks until the optimizer's step
    averages them, if their mean is the reference's, and so is the update."""
    excused = [one for one in faults if one.relation in GRADIENTS]
    updated = all(one.relation != "update" for one in faults)
    if not (excused and updated) or moment.layout.world == 1 or moment.same_rows:
        return []
    for fault in excused:
        quantity = moment.gradient_quantity if fault.relation == "gradient" else "grad"
        expected = {name: moment.expected.tensors(quantity)[name] for name in fault.parameters}
        mean = moment.mean(quantity, expected)
        if compare.astray(mean, expected, moment.spread(quantity)):
            return []
    return excused


def weights_of_micro_batches(moment: Moment, rank: int) -> str:
    """The weight of each micro-batch of all ranks in a gradient, and in the reference's; empty if
    all have their usual weights."""
    weights = weights_in(moment, moment.ranks[rank].grad)
    expected = weights_in(moment, moment.expected.grad)
    mean = sum(expected.values()) / max(len(expected), 1)
    if not (weights and mean):
        return ""
    if are_level(weights.values()) and are_level(expected.values()):
        return ""  # the ratio already says it
    summary, expectation = (
        ", ".join(f"{weight / mean:.3g}" for weight in each.values())
        for each in (weights, expected)
    )
    text = f"the micro-batches (by rank) have the weights {summary}; in the reference {expectation}"
    least = LEVEL * abs(mean)
    gone = [f"{m + 1} of rank {r}" for (r, m), weight in weights.items() if abs(weight) < least]
    if gone:
        return f"{text}: micro-batch {', '.join(gone)} is lost"
    return f"{text}: a mean of means" if are_level(weights.values()) else text


def weights_in(moment: Moment, gradient: Named) -> Weights:
    """The weight of each micro-batch in a gradient; empty if it is made of something else, or if
    they have no gradients in common."""
    import numpy

    ranks = [*enumerate(moment.ranks)]
    parts = {(r, m): p for r, step in ranks for m, p in enumerate(step.parts) if p}
    expected = moment.expected.grad
    names = {n: t for n, t in expected.items() if all(n in part for part in parts.values())}
    if len(parts) < 2 or not names or any(moment.parts_of(rank) for rank, _ in ranks):
        return {}
    basis = numpy.stack([flat(part, names, names) for part in parts.values()], 1)
    vector = flat(gradient, names, names)
    weights = numpy.linalg.lstsq(basis, vector, rcond=None)[0]
    if not length(basis @ weights - vector) <= FIT * length(vector):
        return {}
    return dict(zip(parts, map(float, weights), strict=True))


def are_level(weights: Collection[float]) -> bool:
    import numpy

    values = numpy.array([*weights])
    return bool(values.std() <= LEVEL * abs(values.mean()))
