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

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The remedy leaves the gradients to the optimizer, whose own zero_grad Lightning calls."""
        if not self.ctx.params.own_zero_grad:
            super().zero_grad(set_to_none)

    def extra_facts(self) -> dict[str, Any]:
        before, self.erasable = self.erasable, 0
        return {"before_validation": before}

    def on_validation_start(self) -> None:
        self.erasable = len(self.losses)

    def validation_step(self, rows: Any, _: int) -> None:
        self.map(rows[0])


def fit(ctx: api.Context) -> None:
    """Train for one epoch, and validate in between."""
    every = ctx.params.validate_every
    accumulating.fit(ctx, Validated, validated=True, val_check_interval=every)
