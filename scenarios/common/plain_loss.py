"""Was the loss plain torch's? The records ``step`` have ``loss`` and ``reference_loss``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.bugs import api


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
