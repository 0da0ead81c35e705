"""Train a weight in bf16 and average it with ema_pytorch: does the average change?

Needs torch and ema-pytorch, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from ema_pytorch import EMA


def averages(dtype: torch.dtype) -> list[float]:
    """Of a weight that begins at 1, and to which each step adds 1."""
    model: Any = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.constant_(model.weight, 1.0)
    ema = EMA(model, beta=0.5, update_after_step=2, update_every=1)
    seen = []
    for _ in range(6):
        with torch.no_grad():
            model.weight += 1
        ema.update()
        seen.append(round(float(ema.ema_model.weight), 3))
    return seen


print("ema-pytorch", version("ema-pytorch"))
print("averages in fp32:", averages(torch.float32))
print("averages in bf16:", bf16 := averages(torch.bfloat16))
is_wrong = set(bf16) == {1.0}
print("WRONG: the initial weight is kept" if is_wrong else "right: the average follows the weight")
raise SystemExit(3 if is_wrong else 0)
