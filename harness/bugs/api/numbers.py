"""The one way to compare recorded numbers: NaN and infinity are near nothing.

``abs(a - b) > tolerance`` is false for NaN, so that comparison would treat NaN as equal.
"""

from __future__ import annotations

import math
from typing import Any


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
