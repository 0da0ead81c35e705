"""The one way to compare numbers of records: NaN and infinity are near nothing.

``abs(a - b) > tolerance`` is false of NaN, and so would call it equal. Standard library only.
"""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> bool:
    """Whether this is a number, and neither NaN nor infinite."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def near(value: Any, other: Any, *, within: float = 0.0, share: float = 0.0) -> bool:
    """Whether two finite numbers are at most ``within`` apart, or that ``share`` of the other.

    False where either is NaN, infinite or no number at all.
    """
    if not (finite(value) and finite(other)):
        return False
    return bool(abs(value - other) <= max(within, share * abs(other)))


def named(value: float) -> float | str:
    """A number as JSON can hold it: NaN and infinity by their names, as ``float`` reads them."""
    return value if math.isfinite(value) else str(value)
