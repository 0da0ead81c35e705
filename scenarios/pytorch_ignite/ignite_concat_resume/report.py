"""Save ignite's ConcatScheduler within its first schedule and load it: are the rates the same?

Needs torch and pytorch-ignite, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import ignite
import torch
from ignite.handlers.param_scheduler import ConcatScheduler, LinearCyclicalScheduler


def build() -> tuple[Any, Any]:
    """An optimizer, whose rate falls from 1 for 4 steps, and then rises from 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    falls = LinearCyclicalScheduler(optimizer, "lr", 1.0, 0.0, 200)
    rises = LinearCyclicalScheduler(optimizer, "lr", 0.0, 1.0, 200)
    return optimizer, ConcatScheduler([falls, rises], [4])


def rates(optimizer: Any, scheduler: Any, steps: int) -> list[float]:
    history = []
    for _ in range(steps):
        scheduler(None)
        history.append(round(optimizer.param_groups[0]["lr"], 3))
    return history


print("pytorch-ignite", ignite.__version__)
optimizer, scheduler = build()
print(f"before the save: {rates(optimizer, scheduler, 2)}")
resumed_optimizer, resumed = build()
resumed.load_state_dict(scheduler.state_dict())
whole, loaded = rates(optimizer, scheduler, 5), rates(resumed_optimizer, resumed, 5)
print(f"after it: {whole}; if resumed {loaded}")
print("WRONG: the first schedule lasts too long" if loaded != whole else "right: both are the same")
raise SystemExit(3 if loaded != whole else 0)
