"""Records the learning rates that an optimizer's steps use. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch


def watch(record: Callable[..., None], optimizer: torch.optim.Optimizer) -> None:
    """At each step, record ``rate``: the rate of each parameter group as the step begins."""
    steps = count(1)

    def note(stepping: torch.optim.Optimizer, *_: object) -> None:
        record("rate", next(steps), rates=[float(g["lr"]) for g in stepping.param_groups])

    optimizer.register_step_pre_hook(note)
