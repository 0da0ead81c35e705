"""Resume a GradualWarmupScheduler with a decay: does the learning rate decay?

Needs torch and warmup-scheduler, and no GPU. The exit code is 3 if the bug is there."""

import io
from importlib.metadata import version
from typing import Any

import torch
from torch.optim.lr_scheduler import ExponentialLR
from warmup_scheduler import GradualWarmupScheduler


def made() -> tuple[Any, Any]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    return optimizer, GradualWarmupScheduler(optimizer, 1.0, 2, ExponentialLR(optimizer, 0.5))


def rates(optimizer: Any, scheduler: Any, epochs: int) -> list[float]:
    """The learning rate of each epoch."""
    used = []
    for _ in range(epochs):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


first, second, file = made(), made(), io.BytesIO()
before = rates(*first, epochs=4)
torch.save([part.state_dict() for part in first], file)
file.seek(0)
for part, state in zip(second, torch.load(file, weights_only=False), strict=True):
    part.load_state_dict(state)
right, resumed = rates(*first, epochs=3), rates(*second, epochs=3)
print(f"warmup-scheduler {version('warmup-scheduler')}: after {before}, without a stop {right}")
print(f"{'right' if resumed == right else 'WRONG'}: after a resume {resumed}")
raise SystemExit(0 if resumed == right else 3)
