"""The usual checks of a training loop, which miss most of these bugs; each with whether it fired.

They read ``loss`` and ``grad_norm`` of the records ``step``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


def loss_unlike_reference(records: api.Records, tolerance: float = 1e-3) -> dict[str, bool]:
    """The loss is computed before the wrong update; ``tolerance`` is a fraction."""
    unlike = any(loss_wrong(records, tolerance=tolerance))
    return {"the loss is not that of plain torch with the same weights": unlike}


def loss_wrong(
    records: api.Records, *, parts: bool = False, scale: float = 1, tolerance: float = 1e-3
) -> Iterator[str]:
    """One message for each step whose ``loss`` differs from plain torch's by more than a fraction.

    ``parts``: each rank computed the loss of its part of the rows, so their mean is compared. The
    loss should be ``scale`` times plain torch's.
    """
    by_step: dict[int, list[api.Record]] = {}
    for step in records.of("step"):
        if step["loss"] is not None:  # a pipeline has it in the last stage only
            by_step.setdefault(step["step"], []).append(step)
    for number, steps in by_step.items():
        mean = math.fsum(step["loss"] for step in steps) / len(steps)
        for step in steps:
            loss, expected = mean if parts else step["loss"], scale * step["reference_loss"]
            if not api.near(loss, expected, share=tolerance):
                yield f"the loss of step {number} is {loss:.5g}, but plain torch has {expected:.5g}"
