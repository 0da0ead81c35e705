"""Right trainings that users write in their own ways: each could look wrong to a check.

``train(name, steps)`` runs one of ``LOOPS``, which know nothing of guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch

from . import (
    gradients,
    local_steps,
    losses,
    models,
    optimizers,
    perturbations,
    reductions,
    rows,
    schedules,
    workers,
)

MODULES = (
    gradients,
    perturbations,
    reductions,
    local_steps,
    losses,
    models,
    optimizers,
    rows,
    schedules,
    workers,
)


def _loops(module: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The loops of a module: functions, and entries of its table."""
    yield from module.LOOPS.items()
    for name, function in vars(module).items():
        if getattr(function, "is_loop_of", "") == module.__name__:
            yield name, function


LOOPS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": loop
    for module in MODULES
    for name, loop in _loops(module)
}


def train(name: str, steps: int, before_step: Callable[[int], None]) -> Any:
    """Train on this rank; the process group is up. Returns losses and model."""
    torch.manual_seed(0)
    values: list[float] = []
    models: list[Any] = [None]
    before_step(1)
    for step, (model, loss) in enumerate(islice(LOOPS[name](), steps), 2):
        values.append(float(loss.detach()) if isinstance(loss, torch.Tensor) else loss)
        models = [model]
        before_step(step)
    return SimpleNamespace(losses=values, model=models[0])
