"""Save an optimizer with dcp.save and load it with dcp.load: does it have the saved rate again?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

torch.manual_seed(0)


def build() -> tuple[torch.nn.Linear, torch.optim.Adam]:
    model = torch.nn.Linear(1, 1, bias=False)
    return model, torch.optim.Adam(model.parameters(), lr=1.0)


def states(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The content of a checkpoint: nested dicts with tensors and numbers."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


(model, optimizer), (resumed, its_optimizer) = build(), build()
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
optimizer.param_groups[0]["lr"] = 0.25  # as a schedule does
folder = tempfile.mkdtemp()
checkpoint.save(states(model, optimizer), checkpoint_id=folder)
loaded = states(resumed, its_optimizer)
checkpoint.load(loaded, checkpoint_id=folder)
both = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
set_state_dict(resumed, its_optimizer, **both)
weights, rate = (model.weight.item(), resumed.weight.item()), its_optimizer.param_groups[0]["lr"]
print(f"torch {torch.__version__}: the weight is {weights[1]:.4f}, saved was {weights[0]:.4f}")
print(f"the learning rate is {rate}, saved was 0.25")
print("WRONG: the rate was not loaded" if rate != 0.25 else "right: the rate was loaded")
raise SystemExit(3 if rate != 0.25 else 0)
