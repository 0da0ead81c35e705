"""Of which micro-batches a gradient is made, and with which weights."""

from __future__ import annotations

from harness.probe.numbers import Array, Named, flat, length
from harness.probe.reference import Moment

FIT = 0.01
"""The part of a gradient that the micro-batches may leave unexplained."""

LEVEL = 1e-3
"""How far (as a fraction) weights may differ and count as equal."""


def made_of(at: Moment, rank: int) -> str:
    """The weight of each micro-batch of all ranks in a gradient, and in the reference's; empty if
    all have their usual weights."""
    import numpy

    parts = [(r, m, p) for r, one in enumerate(at.here) for m, p in enumerate(one["parts"]) if p]
    right = at.right["grad"]
    names = {n: t for n, t in right.items() if all(n in part for _, _, part in parts)}
    if len(parts) < 2 or not names or any(at.parts_of(r) for r in range(len(at.here))):
        return ""
    basis = numpy.stack([flat(part, names, names) for _, _, part in parts], 1)
    got, want = (_weights(basis, each, names) for each in (at.here[rank]["grad"], right))
    if got is None or want is None or not float(want.mean()):
        return ""
    if _level(got) and _level(want):
        return ""  # a factor, which the ratio says
    mean = float(want.mean())
    shown = ", ".join(f"{float(x) / mean:.3g}" for x in got)
    wanted = ", ".join(f"{float(x) / mean:.3g}" for x in want)
    text = f"the micro-batches (by rank) have the weights {shown}; in the reference {wanted}"
    gone = [
        f"{m + 1} of rank {r}"
        for (r, m, _), weight in zip(parts, got, strict=True)
        if abs(float(weight)) < LEVEL * abs(mean)
    ]
    if gone:
        return f"{text}: micro-batch {', '.join(gone)} is lost"
    return f"{text}: a mean of means" if _level(got) else text


def _weights(basis: Array, gradient: Named, names: Named) -> Array | None:
    """The micro-batches' weights in a gradient; None if it is made of something else."""
    import numpy

    wanted = flat(gradient, names, names)
    found: Array = numpy.linalg.lstsq(basis, wanted, rcond=None)[0]
    return found if length(basis @ found - wanted) <= FIT * length(wanted) else None


def _level(weights: Array) -> bool:
    return bool(weights.std() <= LEVEL * abs(weights.mean()))
