"""Resume a training with Opacus' optimizer and a scheduler: does the rate of the steps decay?

Needs torch and opacus, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import opacus
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer


def made() -> tuple[Any, Any, Any]:
    model = GradSampleModule(torch.nn.Linear(2, 1, bias=False))
    private: Any = {"noise_multiplier": 0.0, "max_grad_norm": 1.0, "expected_batch_size": 4}
    optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), **private)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def rate(model: Any, optimizer: Any, scheduler: Any) -> float:
    """By which a step moved the weight."""
    weight = next(model.parameters())
    before = weight.detach().clone()
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    return float(((before - weight.detach()) / weight.grad).mean())


first, second = made(), made()
rates = [round(rate(*first), 4) for _ in range(2)]
for old, new in zip(first, second, strict=True):
    new.load_state_dict(old.state_dict())
resumed = [round(rate(*second), 4) for _ in range(3)]
print(f"opacus {opacus.__version__}: the rates of two steps: {rates}; after a resume: {resumed}")
is_wrong = resumed[0] == resumed[2]
print("WRONG: the rate stays as it was saved" if is_wrong else "right: the rate decays")
raise SystemExit(3 if is_wrong else 0)
