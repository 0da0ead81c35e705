"""Lightning's Trainer accumulates gradients, and validates now and then.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.pytorch_lightning import _accumulating as accumulating


class Validated(accumulating.Map):
    """Notes which micro-batches came before a validation."""

    erasable = 0
    """How many of them, since the optimizer's last step."""

    def extra_facts(self) -> dict[str, Any]:
        before, self.erasable = self.erasable, 0
        return {"before_validation": before}

    def on_validation_start(self) -> None:
        self.erasable = len(self.losses)

    def validation_step(self, rows: Any, _: int) -> None:
        self.map(rows[0])


class Remedied(Validated):
    """Leaves the gradients to the optimizer, whose own zero_grad Lightning calls."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear nothing."""


def fit(ctx: api.Context) -> None:
    """Train for one epoch, and validate in between."""
    every = ctx.params.validate_every
    kind = Remedied if ctx.params.own_zero_grad else Validated
    accumulating.fit(ctx, kind, validated=True, val_check_interval=every)
