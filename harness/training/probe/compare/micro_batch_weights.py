"""How much of each micro-batch's own gradient is in the gradient of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.rank.compare import Named, flat, length
from harness.training.probe.compare.reference import Moment

FIT = 0.01
"""The part of a gradient that the micro-batches may leave unexplained."""

LEVEL = 1e-3
"""How far (as a fraction) weights may differ and count as equal."""

Weights = Mapping[tuple[int, int], float]
"""By rank and number of the micro-batch, from 0."""


def weights_of_micro_batches(moment: Moment, rank: int) -> str:
    """The weight of each micro-batch of all ranks in a gradient, and in the reference's; empty if
    all have their usual weights."""
    weights = weights_in(moment, moment.ranks[rank]["grad"])
    expected = weights_in(moment, moment.expected["grad"])
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
    parts = {(r, m): p for r, step in ranks for m, p in enumerate(step["parts"]) if p}
    expected = moment.expected["grad"]
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
