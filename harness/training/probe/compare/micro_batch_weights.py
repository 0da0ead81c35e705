"""How much of each micro-batch's own gradient is in the gradient of a step."""

from __future__ import annotations

from collections.abc import Sequence

from harness.rank.compare import Array, Named, flat, length
from harness.training.probe.compare.reference import Moment

FIT = 0.01
"""The part of a gradient that the micro-batches may leave unexplained."""

LEVEL = 1e-3
"""How far (as a fraction) weights may differ and count as equal."""


def weights_of_micro_batches(moment: Moment, rank: int) -> str:
    """The weight of each micro-batch of all ranks in a gradient, and in the reference's; empty if
    all have their usual weights."""
    parts, names = _parts(moment), _names(moment)
    if names is None:
        return ""
    basis = _basis(parts, names)
    shares, expected_shares = (
        _solve(basis, each, names) for each in (moment.ranks[rank]["grad"], moment.expected["grad"])
    )
    if shares is None or expected_shares is None or not float(expected_shares.mean()):
        return ""
    if _are_level(shares) and _are_level(expected_shares):
        return ""  # the ratio already says it
    mean = float(expected_shares.mean())
    summary = ", ".join(f"{float(x) / mean:.3g}" for x in shares)
    expectation = ", ".join(f"{float(x) / mean:.3g}" for x in expected_shares)
    text = f"the micro-batches (by rank) have the weights {summary}; in the reference {expectation}"
    gone = [
        f"{m + 1} of rank {r}"
        for (r, m, _), weight in zip(parts, shares, strict=True)
        if abs(float(weight)) < LEVEL * abs(mean)
    ]
    if gone:
        return f"{text}: micro-batch {', '.join(gone)} is lost"
    return f"{text}: a mean of means" if _are_level(shares) else text


Part = tuple[int, int, Named]
"""A rank, the number of a micro-batch from 0, and its gradient."""


def _parts(moment: Moment) -> list[Part]:
    return [
        (r, m, p) for r, one in enumerate(moment.ranks) for m, p in enumerate(one["parts"]) if p
    ]


def _names(moment: Moment) -> Named | None:
    """The gradients that all micro-batches have, by name; None if they cannot be weighed."""
    parts, expected = _parts(moment), moment.expected["grad"]
    names = {n: t for n, t in expected.items() if all(n in part for _, _, part in parts)}
    divided = any(moment.parts_of(r) for r in range(len(moment.ranks)))
    return None if len(parts) < 2 or not names or divided else names


def _basis(parts: Sequence[Part], names: Named) -> Array:
    import numpy

    return numpy.stack([flat(part, names, names) for _, _, part in parts], 1)


def weights_in(moment: Moment, gradient: Named) -> list[list[float]] | None:
    """By rank, the weight of each of its micro-batches in a gradient; None if it is made of
    something else."""
    parts, names = _parts(moment), _names(moment)
    shares = None if names is None else _solve(_basis(parts, names), gradient, names)
    if shares is None:
        return None
    return [
        [float(x) for (r, _, _), x in zip(parts, shares, strict=True) if r == rank]
        for rank in range(len(moment.ranks))
    ]


def _solve(basis: Array, gradient: Named, names: Named) -> Array | None:
    """The micro-batches' weights in a gradient; None if it is made of something else."""
    import numpy

    vector = flat(gradient, names, names)
    solution: Array = numpy.linalg.lstsq(basis, vector, rcond=None)[0]
    return solution if length(basis @ solution - vector) <= FIT * length(vector) else None


def _are_level(weights: Array) -> bool:
    return bool(weights.std() <= LEVEL * abs(weights.mean()))
