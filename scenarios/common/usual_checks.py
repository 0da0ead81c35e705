"""The usual checks of a training loop, which miss most of these bugs; each with whether it fired.

They read ``loss`` and ``grad_norm`` of the records ``step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.bugs import api


def norm(records: api.Records) -> dict[str, bool]:
    """The norm is all-reduced, so it agrees between ranks even if the gradients do not."""
    norms: dict[int, set[float]] = {}
    for step in records.of("step"):
        norms.setdefault(step["step"], set()).add(step["grad_norm"])
    return {
        "the global gradient norm differs between ranks": any(len(n) > 1 for n in norms.values())
    }


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
