"""The usual checks of a training loop, which miss most of these bugs; each with whether it fired.

They read the ``loss`` of the records ``step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.bugs import api


def loss_rises(records: api.Records) -> dict[str, bool]:
    """A training that is wrong still learns."""
    return {"the loss rises": any(after > before for before, after in pairwise(_losses(records)))}


def _losses(records: api.Records) -> Sequence[float]:
    return [float(step["loss"]) for step in records.of("step", 0) if step["loss"] is not None]


def loss_ends_higher(records: api.Records) -> dict[str, bool]:
    """A training that takes wrong steps may still make progress."""
    losses = _losses(records)
    higher = len(losses) > 1 and not losses[-1] < losses[0]
    return {"the loss at the end is not below that at the start": higher}
