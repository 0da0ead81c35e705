"""The usual checks of a training loop, which miss most of these bugs; each with whether it fired.

They read ``loss`` and ``grad_norm`` of the records ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from harness.bugs import api

Check = Callable[[api.Records], dict[str, bool]]


def together(*checks: Check) -> Check:
    """All of these checks in one."""

    def all_of(records: api.Records) -> dict[str, bool]:
        return {name: fired for check in checks for name, fired in check(records).items()}

    return all_of


class Checked:
    """The base class of an oracle with checks that miss its bug."""

    checks: Sequence[Check]

    def insufficient_checks(self, records: api.Records) -> dict[str, bool]:
        """The checks that miss this bug, and whether they fired."""
        return together(*self.checks)(records)


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
    steps = [step for step in records.of("step") if step["loss"] is not None]
    unlike = any(
        not api.near(step["loss"], step["reference_loss"], share=tolerance) for step in steps
    )
    return {"the loss is not that of plain torch with the same weights": unlike}
