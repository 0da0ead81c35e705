"""Load the optimizer's state while a weight is frozen that was trained: does its state come back?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
adam = torch.optim.Adam(model.parameters())
for _ in range(5):
    adam.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    adam.step()
adam.zero_grad()
saved = get_optimizer_state_dict(model, adam)


def count(frozen: bool) -> int:
    """The steps of the first weight that a new Adam has counted after the load."""
    model[0].requires_grad_(not frozen)
    resumed = torch.optim.Adam(model.parameters())
    set_optimizer_state_dict(model, resumed, saved)
    return int(resumed.state.get(model[0].weight, {}).get("step", 0))


plain, frozen = count(False), count(True)
print(f"torch {torch.__version__}: 5 steps were saved; loaded: {plain}, if it is frozen: {frozen}")
print("WRONG: the state of the frozen weight is lost" if frozen != 5 else "right: it is loaded")
raise SystemExit(3 if frozen != 5 else 0)
