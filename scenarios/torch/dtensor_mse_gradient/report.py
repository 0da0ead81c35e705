"""Is the gradient of a mean mse_loss right if predictions and targets are split DTensors?

Needs torch alone, and no GPU. The exit code is 1 if the bug is there.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional


def compare(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/at", rank=rank, world_size=2)
    mesh, wrong = init_device_mesh("cpu", (2,)), False
    predictions, targets = torch.arange(64.0).reshape(2, 8, 4).sin().sigmoid()  # between 0 and 1
    for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "binary_cross_entropy"):
        loss = getattr(functional, name)
        plain: Any = predictions.clone().requires_grad_()
        loss(plain, targets).backward()
        split: Any = distribute_tensor(predictions, mesh, [Shard(0)]).requires_grad_()
        loss(split, distribute_tensor(targets, mesh, [Shard(0)])).backward()
        times = split.grad.full_tensor().norm() / plain.grad.norm()
        wrong |= bool(abs(times - 1) > 1e-3)
        if rank == 0:
            print(f"{name}: the gradient is {times:.4g} times the right one", flush=True)
    dist.destroy_process_group()
    raise SystemExit(int(wrong))


if __name__ == "__main__":
    print("torch", torch.__version__, flush=True)
    ranks = spawn(compare, (tempfile.mkdtemp(),), 2, join=False).processes
    wrong = sum(process.join() or process.exitcode for process in ranks) > 0
    print("WRONG: gradients are multiplied by the ranks" if wrong else "right: all are equal")
    raise SystemExit(wrong)
