"""Load a scheduler with a new configuration: whose weight decay does the optimizer have?

Needs torch and megatron-core, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler


def made(steps: int) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    options: dict[str, Any] = {"init_lr": 0.1, "max_lr": 0.1, "min_lr": 0.01, "lr_warmup_steps": 0}
    options |= {"lr_decay_steps": steps, "lr_decay_style": "linear", "wd_incr_steps": steps}
    options |= {"start_wd": 0.0, "end_wd": 1.0, "wd_incr_style": "linear"}
    return optimizer, OptimizerParamScheduler(optimizer, **options)


def decay(optimizer: Any) -> float:
    return float(optimizer.param_groups[0]["weight_decay"])


optimizer, scheduler = made(steps=10)
scheduler.step(5)
resumed, longer = made(steps=20)
longer.load_state_dict(scheduler.state_dict())
print(f"megatron-core {version('megatron-core')}: the weight decay of step 6 of 10", end=" ")
print(f"was {decay(optimizer)}, and is {decay(resumed)} after a resume for 20 steps")
is_wrong = decay(resumed) != decay(optimizer)
print("WRONG: that of the new configuration" if is_wrong else "right: that of the checkpoint")
raise SystemExit(3 if is_wrong else 0)
