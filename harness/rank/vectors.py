"""Named tensors as vectors: how much of one is in another, and how far rounding moves them.

Rounding is measured, not assumed: the reference runs twice more, with every leaf output, every
gradient and all weights moved by one ulp of their own type. What is further from the reference than
``SAFE`` times that spread is another result.

The tensors are numpy's arrays here: torch takes seconds to import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from harness.bugs.api.numbers import projection

if TYPE_CHECKING:
    from numpy import ndarray

P = ParamSpec("P")
T = TypeVar("T")

Array: TypeAlias = "ndarray[Any, Any]"
Named = Mapping[str, Array]
Spread = Mapping[str, float]

SAFE = 16.0
"""How many times the spread of rounding a result may be from the reference. In 180 runs of loops
that are right, of nine kinds, the worst was 3.8 times."""

LEAST = 6e-8
"""The least spread of a tensor, as a part of its norm: half an ulp of fp32."""

LEAST_OF_ALL = 1e-9
"""The same, as a part of the norm of all tensors: a gradient that is 0 without rounding."""

CERTAIN = 30.0
"""How many times its spread a value's gradient must be, for its update to be compared: Adam makes
a whole step of a gradient that is only rounding."""

ELSEWHERE = 0.02
"""A part of a gradient in another direction that is too large for a mere factor."""


class Share(NamedTuple):
    """How much of a reference is in something."""

    ratio: float
    aside: float
    """The part (0 to 1) of it that has another direction than the reference."""

    @property
    def is_factor(self) -> bool:
        return self.aside < ELSEWHERE


def without_warnings(function: Callable[P, T]) -> Callable[P, T]:
    """The function without numpy's warnings: numbers that are not finite are reported in words."""

    @functools.wraps(function)
    def quiet(*arguments: P.args, **keywords: P.kwargs) -> T:
        import numpy

        with numpy.errstate(all="ignore"):
            return function(*arguments, **keywords)

    return quiet


def flat(tensors: Named, names: Iterable[str], like: Named) -> Array:
    """The tensors of these names in one vector; zeros for those that are missing."""
    import numpy

    arrays = [tensors[name] if name in tensors else numpy.zeros_like(like[name]) for name in names]
    return numpy.concatenate([each.astype(float).ravel() for each in arrays] or [numpy.zeros(0)])


def length(array: Array) -> float:
    """The Euclidean norm, in fp64."""
    vector = array.astype(float).ravel()
    return float(vector @ vector) ** 0.5


def share(tensors: Named, reference: Named, names: Iterable[str] | None = None) -> Share:
    """How much of ``right`` is in ``got``, for all tensors of ``right`` or those of ``names``."""
    chosen = list(reference if names is None else names)
    part = projection(flat(tensors, chosen, reference), flat(reference, chosen, reference))
    return Share(part.ratio, part.aside if part.right else 0.0)


def norm(tensors: Named) -> float:
    return float(sum(length(tensor) ** 2 for tensor in tensors.values()) ** 0.5)


def distances(tensors: Named, reference: Named) -> dict[str, float]:
    """By name, how far apart two tensors are; a missing one counts as zeros."""
    return {
        name: length(tensors[name].astype(float) - tensor if name in tensors else tensor)
        for name, tensor in reference.items()
    }


def spread(perturbed: Sequence[Named], reference: Named) -> dict[str, float]:
    """By name, how far rounding alone moves a tensor."""
    whole = LEAST_OF_ALL * norm(reference)
    moves = [distances(each, reference) for each in perturbed]
    return {
        name: max([far[name] for far in moves] + [LEAST * length(tensor), whole])
        for name, tensor in reference.items()
    }


def astray(tensors: Named, reference: Named, rounding: Spread) -> dict[str, float]:
    """By name, how many times the spread a tensor is away, of those that are too far."""
    far = {name: _times(far, rounding[name]) for name, far in distances(tensors, reference).items()}
    return {name: times for name, times in far.items() if not times <= SAFE}


def _times(far: float, spread: float) -> float:
    """How many times a spread it is; nothing is far from nothing, even where nothing is moved."""
    if spread:
        return far / spread
    return float("inf") if far else 0.0


def worst(tensors: Named, reference: Named, rounding: Spread) -> float:
    """The largest distance of all tensors, in units of the spread."""
    return max(
        (d / rounding[n] for n, d in distances(tensors, reference).items() if rounding[n]),
        default=0,
    )


def masked(tensors: Named, keep: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors with zeros where nothing is certain."""
    return {n: t * keep[n] if n in keep else t for n, t in tensors.items()}


def certain(gradient: Named, rounding: Spread) -> dict[str, Array]:
    """Which values of a gradient are clearly more than rounding."""
    return {
        name: abs(tensor) > CERTAIN * rounding[name] / max(tensor.size, 1) ** 0.5
        for name, tensor in gradient.items()
    }
