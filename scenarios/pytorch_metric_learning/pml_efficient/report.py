"""Is the gradient of DistributedLossWrapper(efficient=True) on two ranks that of one process?

Needs torch and pytorch-metric-learning, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def gradient(model: Any, loss: Any, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss(model(rows), labels).backward()
    return next(model.parameters()).grad.flatten().clone()  # type: ignore[no-any-return]


def gradients(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient on two ranks, and in one process with all rows."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29732", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, rows, labels = torch.nn.Linear(6, 4), torch.randn(16, 6), torch.arange(16) // 2 % 4
    alone = gradient(model, NTXentLoss(), rows, labels)
    wrapped, part = DistributedLossWrapper(NTXentLoss(), efficient=True), slice(rank, None, 2)
    on_ranks = gradient(DistributedDataParallel(model), wrapped, rows[part], labels[part])
    torch.distributed.barrier()
    return on_ranks, alone


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    on_two, in_one = gradients(1)
    print("pytorch-metric-learning", version("pytorch-metric-learning"), "on 2 ranks, efficient")
    text = f"norm {on_two.norm():.4f}, cosine {torch.cosine_similarity(on_two, in_one, dim=0):.4f}"
    has_bug = not torch.allclose(on_two, in_one, rtol=1e-3, atol=1e-3 * float(in_one.norm()))
    print(f"{'WRONG' if has_bug else 'right'}: {text}; in one process {in_one.norm():.4f}")
    raise SystemExit(3 if has_bug else 0)
