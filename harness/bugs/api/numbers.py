"""The one way to compare recorded numbers, and the one definition of "times the right gradient".

NaN and infinity are near nothing.

``abs(a - b) > tolerance`` is false for NaN, so that comparison would treat NaN as equal. Standard
library only: the vectors are torch's or numpy's, of one dimension and in fp64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


def finite(value: Any) -> bool:
    """Whether this is a number, and neither NaN nor infinite."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def near(value: Any, other: Any, *, within: float = 0.0, share: float = 0.0) -> bool:
    """Whether two numbers differ by at most ``within``, or by at most ``share`` of the other.

    False if one of them is not a finite number.
    """
    if not (finite(value) and finite(other)):
        return False
    return bool(abs(value - other) <= max(within, share * abs(other)))


def named(value: float) -> float | str:
    """A number that JSON can contain: NaN and infinity as names that ``float`` reads."""
    return value if math.isfinite(value) else str(value)


class Projection(NamedTuple):
    """A vector compared with the right one."""

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
    """Split a vector into a multiple of the right one and a remainder."""
    square = float(right @ right)
    ratio = float(got @ right) / square if square else math.nan
    remainder = got - ratio * right if square else got
    return Projection(ratio, math.sqrt(square), norm(got), norm(remainder))


def norm(vector: Any) -> float:
    """The Euclidean norm."""
    return math.sqrt(float(vector @ vector))
