"""transformers' Trainer trains as many epochs as it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .live_objects import attribute
from .posts import LocalAlarm

LEAST_MISSING = 0.05
"""The part of the epochs that is missing: less may be the rest of an epoch, which is dropped."""


def missing_epochs(settings: Any, state: Any) -> Iterator[LocalAlarm]:
    """An alarm if a Trainer with these settings that has made all steps that it planned trained
    fewer epochs than it was asked for. A callback may stop it before, and a number of steps may be
    asked for instead."""
    values = [attribute(settings, name) for name in ("num_train_epochs", "max_steps")]
    values += [attribute(state, name) for name in ("epoch", "global_step", "max_steps")]
    if not all(type(one) in (int, float) for one in values):
        return
    asked, most_steps, epoch, step, planned = values
    steps_of_epoch = step / epoch if epoch else 0.0
    missing = asked - epoch
    is_planned = most_steps <= 0 and step == planned > 0
    if is_planned and missing > LEAST_MISSING * asked and missing * steps_of_epoch > 1:
        text = (
            f"the Trainer was asked for {asked:.4g} epochs, and ends by itself after {epoch:.4g}: "
            f"it planned {planned:.0f} steps, which are fewer"
        )
        yield LocalAlarm("samples", "short", text, missing)
