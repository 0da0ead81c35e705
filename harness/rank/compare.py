"""Named tensors as vectors: how much of one is in another, and how far rounding moves them.

Rounding is measured, not assumed: the reference runs twice more, with every leaf output, every
gradient and all weights moved by one ulp of their own type. A result differs from the reference if
its distance is more than ``SAFE`` times that spread.

The tensors are numpy arrays here, except in ``ulp``: the harness compares what ranks recorded, and
torch takes seconds to import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from harness.detectors.arithmetic import Projection, projection

if TYPE_CHECKING:
    from numpy import ndarray

P = ParamSpec("P")
T = TypeVar("T")

Array: TypeAlias = "ndarray[Any, Any]"
Named = Mapping[str, Array]
Spread = Mapping[str, float]

SAFE = 16.0
"""How many times the spread of rounding a result may be away from the reference. In 180 runs of
correct loops, of nine kinds, the largest distance was 3.8 times the spread."""

LEAST = 6e-8
"""The least spread of a tensor, as a part of its norm: half an ulp of fp32."""

LEAST_OF_ALL = 1e-9
"""The least spread as a part of the norm of all tensors, for gradients that are only rounding."""

CERTAIN = 30.0
"""A value's update is compared only if its gradient is this many times its spread: Adam takes a
full step even if a gradient is only rounding."""


def without_warnings(function: Callable[P, T]) -> Callable[P, T]:
    """Suppress numpy's warnings in a function: its callers report numbers that are not finite."""

    @functools.wraps(function)
    def quiet(*arguments: P.args, **keywords: P.kwargs) -> T:
        import numpy

        with numpy.errstate(all="ignore"):
            return function(*arguments, **keywords)

    return quiet


def flat(tensors: Named, names: Iterable[str], like: Named) -> Array:
    """Join the tensors of these names to one vector; a missing tensor gives zeros."""
    import numpy

    arrays = [tensors[name] if name in tensors else numpy.zeros_like(like[name]) for name in names]
    return numpy.concatenate([each.astype(float).ravel() for each in arrays] or [numpy.zeros(0)])


def length(array: Array) -> float:
    """The Euclidean norm, in fp64."""
    vector = array.astype(float).ravel()
    return float(vector @ vector) ** 0.5


def share(tensors: Named, reference: Named, names: Iterable[str] | None = None) -> Projection:
    """How much of ``reference`` is in ``tensors``, for all names or for ``names``."""
    chosen = list(reference if names is None else names)
    return projection(flat(tensors, chosen, reference), flat(reference, chosen, reference))


def norm(tensors: Named) -> float:
    return float(sum(length(tensor) ** 2 for tensor in tensors.values()) ** 0.5)


def ulp(tensor: Any, generator: Any) -> Any:
    """A random step of -1, 0 or +1 ulp for each element of a tensor of torch."""
    import torch

    signs = torch.randint(-1, 2, tensor.shape, generator=generator)
    return tensor.detach() * signs.to(tensor.device, tensor.dtype) * torch.finfo(tensor.dtype).eps


def distances(tensors: Named, reference: Named) -> dict[str, float]:
    """By name, the distance of a tensor from the reference; a missing tensor counts as zeros."""
    return {
        name: length(tensors[name].astype(float) - tensor if name in tensors else tensor)
        for name, tensor in reference.items()
    }


def are_near(tensors: Named, twins: Named, share: float) -> bool:
    """Whether tensors differ by at most a part of their norm, in what both have."""
    common = {n: t for n, t in twins.items() if n in tensors and tensors[n].shape == t.shape}
    return norm({name: tensors[name] - t for name, t in common.items()}) <= share * norm(common)


def spread(perturbed: Sequence[Named], reference: Named) -> dict[str, float]:
    """By name, how far rounding alone moves a tensor. A perturbed one that is not finite does not
    count, as an overflow is no rounding; if none is finite, it may be any distance."""
    whole = LEAST_OF_ALL * norm(reference)
    moves = [distances(each, reference) for each in perturbed]
    spreads = {}
    for name, tensor in reference.items():
        finite = [far[name] for far in moves if isfinite(far[name])]
        unknown = [inf] if moves and not finite else []
        spreads[name] = max([*finite, *unknown, LEAST * length(tensor), whole])
    return spreads


def astray(tensors: Named, reference: Named, rounding: Spread) -> dict[str, float]:
    """For tensors that are too far away: by name, their distance in units of the spread."""
    far = {name: _times(far, rounding[name]) for name, far in distances(tensors, reference).items()}
    return {name: times for name, times in far.items() if not times <= SAFE}


def _times(far: float, spread: float) -> float:
    """A distance in units of the spread; 0 if both are 0."""
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
    """Set to zero the values that ``keep`` excludes."""
    return {n: t * keep[n] if n in keep else t for n, t in tensors.items()}


def certain(gradient: Named, rounding: Spread) -> dict[str, Array]:
    """Masks of the values of a gradient that are clearly more than rounding."""
    return {
        name: abs(tensor) > CERTAIN * rounding[name] / max(tensor.size, 1) ** 0.5
        for name, tensor in gradient.items()
    }
