"""Decides whether two results are equal up to rounding.

Rounding is measured, as ``probe`` does it: the same pass runs with all weights moved by an ulp. Two
results differ if their distance is more than ``SAFE`` times that change. Two correct computations
can round differently in more places than the weights, so a part of the norm is always allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.rank.compare import (
    SAFE,
    Array,
    Named,
    Spread,
    astray,
    distances,
    length,
    norm,
    share,
    spread,
)
from harness.rank.models.answer import Wrong

ALLOWED = 1e-4
"""The part of a tensor's norm by which two correct computations may differ."""

ALLOWED_OF_ALL = 1e-5
"""The same, for the norm of all tensors: some gradients are only rounding."""

FACTOR = 0.02
"""A factor nearer to 1 is reported as a distance."""

SHOWN = 3
"""How many names a reason lists."""


def arrays(tensors: Mapping[str, Any]) -> Named:
    """Tensors of torch as arrays of numpy, in fp32."""
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in tensors.items()}


def rounding(expected: Named, perturbed: Sequence[Named]) -> Spread:
    """For each name, the distance that rounding explains, divided by SAFE."""
    measured, whole = spread(perturbed, expected), norm(expected)
    return {
        name: max(measured[name], ALLOWED * length(tensor) / SAFE, ALLOWED_OF_ALL * whole / SAFE)
        for name, tensor in expected.items()
    }


def require_equal(actual: Named, expected: Named, allowed: Spread, phrase: str) -> None:
    """Raise Wrong if tensors differ by more than rounding. ``phrase`` begins the reason."""
    far = astray(actual, expected, allowed)
    if far:
        raise Wrong(f"{phrase} {_difference(actual, expected, sorted(far, key=lambda n: -far[n]))}")


def _difference(actual: Named, expected: Named, names: Sequence[str]) -> str:
    """How the named tensors differ, the worst first."""
    part = share(actual, expected, names)
    if part.is_factor and abs(part.ratio - 1) > FACTOR:
        how = f"is {part.ratio:.3g} times the right one"
    else:
        away = distances(actual, expected)
        all_away = sum(away[n] ** 2 for n in names) ** 0.5
        size = sum(length(expected[n]) ** 2 for n in names) ** 0.5
        how = f"is off by {percent(all_away, size)}"
    if len(expected) == 1:
        return how
    listed = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{how} in {len(names)} of {len(expected)} parameters: {listed}"


def off_by(actual: Array, expected: Array) -> str:
    """How far logits are from the expected ones, in words."""
    return f"logits are off by {percent(length(actual - expected), length(expected))}"


def percent(away: float, size: float) -> str:
    """A distance as a part of a norm."""
    return f"{100 * away / size:.3g} %" if size else "all of it"
