"""Train with Prodigy under FSDP on two ranks: is its step size d that of one process?

Needs torch and prodigyopt, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from prodigyopt import Prodigy
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.multiprocessing.spawn import spawn

if not torch.cuda.is_available():  # Prodigy puts two numbers on the GPU, to add them up
    torch.Tensor.cuda = lambda self, *_: self  # type: ignore[assignment,method-assign]


def sizes(rank: int) -> list[float]:
    """The step size d after 20 steps, in one process and on two ranks which have the same rows."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29736", rank=rank, world_size=2)
    steps = []
    for wrap in (lambda m: m, lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu"))):
        torch.manual_seed(0)
        layers: Any = torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        model, rows = wrap(torch.nn.Sequential(*layers)), torch.randn(32, 6)
        optimizer = Prodigy(model.parameters())
        for _ in range(20):
            optimizer.zero_grad()
            (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        steps.append(float(optimizer.param_groups[0]["d"]))
    return steps


if __name__ == "__main__":
    spawn(sizes, join=False, daemon=True)  # rank 0
    alone, both = sizes(1)
    has_bug = abs(both / alone - 1) > 1e-3
    print("prodigyopt", version("prodigyopt"), "under FSDP on 2 ranks, after 20 steps")
    print(f"{'WRONG' if has_bug else 'right'}: d is {both:.4f}, in one process {alone:.4f}")
    raise SystemExit(3 if has_bug else 0)
