"""What a script made before it called ``guard()``: optimizers, schedules and loss scalers."""

from __future__ import annotations

import weakref
from typing import Any

from ..live_objects import objects
from ..sampling.optimizers import is_constructed

OPTIMIZER = "torch.optim.optimizer.Optimizer"
SCHEDULE = "torch.optim.lr_scheduler.LRScheduler"
SCALERS = "torch.amp.grad_scaler.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler"

FEW = 4
"""More optimizers that have not stepped are those of a notebook's earlier cells: a test has twenty,
which took the place of the one that trains."""


class Earlier:
    """The objects that were there before guard was.

    A notebook may have optimizers of earlier cells. ``fresh`` are those that are watched from their
    first step on: they have not stepped, and it is clear which of them train. ``waiting`` are the
    others: one that steps is watched from its second step on."""

    def __init__(self) -> None:
        live = objects((OPTIMIZER, SCHEDULE, *SCALERS))
        self.schedules: list[Any] = live.get(SCHEDULE, [])
        scalers = {id(one): one for name in SCALERS for one in live.get(name, ())}
        self.scalers = list(scalers.values())  # each once: a class may inherit from another
        optimizers = list(filter(is_constructed, live[OPTIMIZER]))
        # One whose constructor failed has no groups, or no state.
        made = (one for one in optimizers if vars(one).get("param_groups"))
        fresh = [one for one in made if not vars(one).get("state", True)]
        ids = [id(p) for one in fresh for group in one.param_groups for p in group["params"]]
        is_clear = len(fresh) <= FEW and len(set(ids)) == len(ids) and len(self.scalers) <= 1
        self.fresh = fresh if is_clear else []
        self.waiting: weakref.WeakSet[Any] = weakref.WeakSet(
            one for one in optimizers if not any(one is each for each in self.fresh)
        )
