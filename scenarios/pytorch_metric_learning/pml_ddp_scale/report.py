"""Wrap a loss in DistributedLossWrapper on two ranks: is DDP's gradient that of one process?

Needs torch and pytorch-metric-learning, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def norm(model: Any, loss: Any, rows: torch.Tensor, labels: torch.Tensor) -> float:
    """The norm of the gradient."""
    model.zero_grad()
    loss(model(rows), labels).backward()
    return float(next(model.parameters()).grad.norm())


def norms(rank: int) -> tuple[float, float]:
    """The norm on two ranks, and in one process with all rows."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29731", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, rows, labels = torch.nn.Linear(6, 4), torch.randn(16, 6), torch.arange(16) % 4
    alone = norm(model, NTXentLoss(), rows, labels)
    wrapped, part = DistributedLossWrapper(NTXentLoss()), slice(rank, None, 2)
    on_ranks = norm(DistributedDataParallel(model), wrapped, rows[part], labels[part])
    torch.distributed.barrier()
    return on_ranks, alone


if __name__ == "__main__":
    spawn(norms, join=False, daemon=True)  # rank 0
    on_two, in_one = norms(1)
    print("pytorch-metric-learning", version("pytorch-metric-learning"), "on 2 ranks")
    has_bug = abs(on_two / in_one - 1) > 1e-3
    print(f"{'WRONG' if has_bug else 'right'}: norm {on_two:.4f}, in one process {in_one:.4f}")
    raise SystemExit(3 if has_bug else 0)
