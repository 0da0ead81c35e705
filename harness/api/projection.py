"""How much of one vector is in another: the one definition of "times the right gradient".

The vectors are torch's or numpy's, of one dimension and in fp64: neither is imported here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Projection(NamedTuple):
    """A vector beside a right one."""

    ratio: float
    """How many times the right one is in it, along its direction; NaN if that is 0."""
    right: float
    """The norm of the right one."""
    got: float
    beside: float
    """The norm of what it has in other directions."""

    @property
    def aside(self) -> float:
        """The part (0 to 1) of it that has other directions."""
        return self.beside / self.got if self.got else 0.0


def projection(got: Any, right: Any) -> Projection:
    """Take a vector apart into a multiple of the right one, and the rest."""
    square = float(right @ right)
    ratio = float(got @ right) / square if square else math.nan
    rest = got - ratio * right if square else got
    return Projection(ratio, math.sqrt(square), norm(got), norm(rest))


def norm(vector: Any) -> float:
    """The Euclidean norm."""
    return math.sqrt(float(vector @ vector))
