"""Ask for the state of a new Adam before its first step: is the first update still the right one?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def first_step(ask: bool) -> tuple[float, float]:
    """The first update of a weight by Adam with a rate of 1, and Adam's count after it."""
    model = torch.nn.Linear(1, 1, bias=False)
    adam = torch.optim.Adam(model.parameters(), lr=1.0)
    if ask:
        get_optimizer_state_dict(model, adam)
    before = model.weight.item()
    model(torch.ones(1, 1)).sum().backward()
    adam.step()
    return before - model.weight.item(), float(adam.state[model.weight]["step"])


plain, called = first_step(ask=False), first_step(ask=True)
print(f"torch {torch.__version__}: the first update is {plain[0]:.4f}, the count {plain[1]:g}")
print(f"if get_optimizer_state_dict was called before: {called[0]:.4f}, the count {called[1]:g}")
differs = called[1] != plain[1]
print("WRONG: to ask took a step" if differs else "right: to ask changes nothing")
raise SystemExit(3 if differs else 0)
