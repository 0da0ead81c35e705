"""Steps that a loss scaler skips for ever: no loss scale is small enough for the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..posting.posts import Alarm

MORE = 4
"""Skipped steps after which even a loss that is not scaled up has overflowed, ..."""
LEAST = 8
"""... but so many at least: a scale that does not fall may overflow now and then."""
SCALE, BACKOFF = 2.0**16, 0.5
"""Those of torch's scaler, for one that does not tell its own."""
AT_LEAST = 3
"""Skipped steps in a row at the smallest scale that are too many: DeepSpeed at ZeRO stage 0 skips
all that follow (``fp16_overflow_stage0``)."""
MANY = 3
"""Skipped steps in a row after which losses are looked at, ..."""
LOST = 2
"""... and how many of the next ones may have a loss that is not finite: it is not scaled. One batch
may have no labels, as each third one in the right loop ``gradients.not_finite_to_zero``."""


class Skips:
    """The steps in a row that a loss scaler has skipped."""

    def __init__(self) -> None:
        self._scale: float | None = None
        self.taken()

    def taken(self) -> None:
        """Note that a step was taken."""
        self.row = self._lost = 0
        """The skipped steps in a row, and how many of the last ones have a lost loss."""
        self._same = self._low = 0
        """How many of the row had the last one's scale, and a scale that can fall no more."""

    @property
    def are_many(self) -> bool:
        """Whether the losses of the next steps are looked at."""
        return self.row >= MANY

    def skipped(self, scaler: Any, steps: int) -> Alarm | None:
        """Note that a step was skipped, after so many that were taken; returns an alarm if they
        are too many. ``scaler`` is torch's, or an optimizer of DeepSpeed, which has one."""
        before, self.row = self._scale, self.row + 1
        known = known_scale(scaler)
        if known is None:
            is_alarm = self.row == most_skips(scaler)
            return self._alarm(steps, "no scale makes the gradients finite") if is_alarm else None
        self._scale = known.now
        self._same = self._same + 1 if known.now == before else 1
        self._low = self._low + 1 if known.now <= max(1.0, known.smallest) else 0
        if self.row > self._low == AT_LEAST:
            return self._alarm(steps, f"no scale is small enough, it is {known.now:g} now")
        if self._same == max(LEAST, known.patience + AT_LEAST) and not self.row > self._low > 0:
            return self._alarm(steps, f"the last {self._same} with the same scale, {known.now:g}")
        return None

    def lost(self, is_lost: bool, row: int, steps: int) -> Alarm | None:
        """Note whether the last one of some skipped steps had a loss that is not finite: no scale
        of it helps."""
        self._lost = self._lost + 1 if is_lost else 0
        if self._lost != LOST:
            return None
        return self._alarm(steps, "the loss itself is not finite, which no scale changes", row)

    def _alarm(self, steps: int, why: str, row: int = 0) -> Alarm:
        since = f"since step {steps}" if steps else "at all"
        skips = f"the loss scaler skipped {row or self.row} steps in a row"
        text = f"{skips}, and no step was taken {since}: {why}"
        return Alarm("scaler", "skips", text, size=float(self.row))


@dataclass
class KnownScale:
    """The scale of a loss scaler that keeps it on the host."""

    now: float
    smallest: float
    patience: int
    """Skipped steps for which it waits before it falls."""


def known_scale(scaler: Any) -> KnownScale | None:
    """The scale of DeepSpeed's optimizers; None for torch's scaler, that has it on the device."""
    for owner in (*(getattr(scaler, name, None) for name in SCALERS), scaler):
        values = getattr(owner, "__dict__", {})
        if isinstance(values.get("cur_scale"), (int, float)):
            smallest = values.get("min_scale") or values.get("min_loss_scale")
            patience = values.get("cur_hysteresis", 1) - 1
            return KnownScale(float(values["cur_scale"]), float(smallest or 0.0), patience)
    return None


SCALERS = ("loss_scaler", "loss_scale_config")
"""The attributes of DeepSpeed's optimizers that have the scale; old releases have it themselves."""


def most_skips(scaler: Any) -> int:
    """The skipped steps in a row of torch's scaler that are too many: so many bring the first scale
    below 1. It is known without the device, and a scale that has grown needs a few steps more."""
    scale = float(getattr(scaler, "_init_scale", SCALE))
    backoff = float(getattr(scaler, "_backoff_factor", BACKOFF))
    if not 0 < backoff < 1 or scale <= 1:
        return LEAST
    return max(LEAST, math.ceil(math.log(scale) / -math.log(backoff)) + MORE)
