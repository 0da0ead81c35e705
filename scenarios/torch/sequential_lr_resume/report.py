"""Resume a training with SequentialLR(last_epoch=4): does it go on with the same rates?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, LambdaLR, SequentialLR


def lambda_lr(optimizer: Any, last_epoch: int) -> Any:
    """A tenth of the rate for 3 epochs, then the whole rate with a decay."""
    return LambdaLR(optimizer, lambda n: 0.1 if n < 3 else 0.9 ** (n - 3), last_epoch)


def sequential_lr(optimizer: Any, last_epoch: int) -> Any:
    """The same rates."""
    parts = [ConstantLR(optimizer, 0.1, total_iters=3), ExponentialLR(optimizer, 0.9)]
    return SequentialLR(optimizer, parts, [3], last_epoch)


def rates(optimizer: Any, scheduler: Any, epochs: int) -> list[float]:
    history = []
    for _ in range(epochs):
        history.append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        scheduler.step()
    return history


for build in (lambda_lr, sequential_lr):
    optimizer, resumed = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0) for _ in "12")
    scheduler = build(optimizer, -1)
    before = rates(optimizer, scheduler, 5)  # epochs 0 to 4
    resumed.load_state_dict(optimizer.state_dict())
    whole, loaded = rates(optimizer, scheduler, 4), rates(resumed, build(resumed, 4), 4)
    print(f"{build.__name__}: {before}, then {whole}; if resumed {loaded}")
print(f"torch {torch.__version__}")
print("WRONG: SequentialLR starts again" if loaded != whole else "right: the rates are the same")
raise SystemExit(3 if loaded != whole else 0)
