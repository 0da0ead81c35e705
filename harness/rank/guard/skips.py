"""Steps that a loss scaler skips for ever: no loss scale is small enough for the gradients."""

from __future__ import annotations

import math
from typing import Any

from .posts import LocalAlarm

MORE = 4
"""Skipped steps after which even a loss that is not scaled up has overflowed, ..."""
LEAST = 8
"""... but so many at least: a scale that does not fall may overflow now and then."""
SCALE, BACKOFF = 2.0**16, 0.5
"""Those of torch's scaler, for one that does not tell its own."""


class Skips:
    """The steps in a row that a loss scaler has skipped."""

    def __init__(self) -> None:
        self._row = 0

    def taken(self) -> None:
        """Note that a step was taken."""
        self._row = 0

    def skipped(self, scaler: Any, steps: int) -> LocalAlarm | None:
        """Note that a step was skipped, after so many that were taken; returns an alarm if they
        are too many."""
        self._row += 1
        if self._row != most_skips(scaler):
            return None
        since = f"since step {steps}" if steps else "at all"
        text = (
            f"the loss scaler skipped {self._row} steps in a row, and no step was taken {since}: "
            "the gradients are not finite with any scale"
        )
        return LocalAlarm("scaler", "skips", text, float(self._row))


def most_skips(scaler: Any) -> int:
    """The skipped steps in a row that are too many: so many bring the first scale below 1. It is
    known without the device, and a scale that has grown needs a few steps more."""
    scale = float(getattr(scaler, "_init_scale", SCALE))
    backoff = float(getattr(scaler, "_backoff_factor", BACKOFF))
    if not 0 < backoff < 1 or scale <= 1:
        return LEAST
    return max(LEAST, math.ceil(math.log(scale) / -math.log(backoff)) + MORE)
