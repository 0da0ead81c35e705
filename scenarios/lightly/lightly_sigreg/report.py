"""Is the gradient of SIGReg(gather_distributed=True) on two ranks that of one process?

Needs torch and lightly, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from lightly.loss.lejepa_loss import SIGReg
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def norm(model: Any, loss: Any, rows: torch.Tensor) -> float:
    """The norm of the gradient."""
    model.zero_grad()
    torch.manual_seed(1)  # SIGReg draws directions
    loss(model(rows)).backward()
    return float(next(model.parameters()).grad.norm())


def norms(rank: int) -> tuple[float, float]:
    """The norm on two ranks, and in one process with all rows."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29738", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, rows = torch.nn.Linear(6, 4, bias=False), torch.randn(16, 6)
    alone = norm(model, SIGReg(), rows)
    several = SIGReg(gather_distributed=True)
    on_ranks = norm(DistributedDataParallel(model), several, rows.chunk(2)[rank])
    torch.distributed.barrier()
    return on_ranks, alone


if __name__ == "__main__":
    spawn(norms, join=False, daemon=True)  # rank 0
    on_two, in_one = norms(1)
    print("lightly", version("lightly"), "on 2 ranks")
    has_bug = abs(on_two / in_one - 1) > 1e-3
    print(f"{'WRONG' if has_bug else 'right'}: norm {on_two:.4f}, in one process {in_one:.4f}")
    raise SystemExit(3 if has_bug else 0)
