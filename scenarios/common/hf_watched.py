"""A model whose steps of SGD are recorded, in a trainer of transformers or trl.

Imports torch: import it inside ``run``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from harness.bugs import api
from scenarios.common import plain_torch


class Watched:
    """Records what each step of SGD at the rate ``lr``, a parameter, did with a model.

    Make it before the trainer, which may replace the model's forward. A subclass notes what the
    model is given, and says what to record.
    """

    def __init__(
        self,
        ctx: api.Context,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        entrance: nn.Module | None = None,
    ) -> None:
        """``entrance`` is the part of the model that is given the rows; by default the model."""
        self.ctx, self.model, self.step = ctx, model, 0
        self.plain = copy.deepcopy(model)  # before the hooks, which would be copied, too
        self.start = plain_torch.copied(model)
        self.seen: list[Any] = []
        """The micro-batches of the current step."""
        (entrance or model).register_forward_pre_hook(self._note_batch, with_kwargs=True)
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _note_batch(self, _: Any, positional: Any, keywords: dict[str, Any]) -> None:
        """Add what the model is given to ``seen``."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """What to record of a step, from ``seen`` and from the ``weights`` before it."""
        raise NotImplementedError

    def _applied(self, plain: plain_torch.Plain) -> dict[str, Any]:
        """What the step applied of plain torch's gradient."""
        after = plain_torch.copied(self.model)
        return plain_torch.facts(plain, self.weights, after, self.ctx.params.lr)

    def _before(self, *_: Any) -> None:
        self.weights = plain_torch.copied(self.model)

    def _after(self, *_: Any) -> None:
        self.step += 1
        self.ctx.record("step", self.step, **self.facts())
        self.seen.clear()
