"""Distill from a teacher with log_softmax inside loss_parallel(): is the gradient right?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.multiprocessing.spawn import spawn

logits, teacher = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))


def distillation(logits: torch.Tensor, teacher: torch.Tensor) -> Any:
    return -(teacher.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def split(rank: int) -> tuple[float, torch.Tensor]:
    """The loss and its gradient if the 8 classes are split over two ranks."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29722", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    student, target = (distribute_tensor(each, mesh, [Shard(1)]) for each in (logits, teacher))
    with loss_parallel():
        loss = distillation(student.requires_grad_(), target)
        loss.backward()
    return loss.full_tensor().item(), student.grad.full_tensor()


if __name__ == "__main__":
    spawn(split, join=False, daemon=True)  # rank 0
    loss, gradient = split(1)
    plain = distillation(logits.requires_grad_(), teacher)
    expected = torch.autograd.grad(plain, logits)[0]
    off = float((gradient - expected).norm() / expected.norm())
    print(f"torch {torch.__version__}: the loss is {loss:.4f}, of plain tensors {plain:.4f}")
    print(f"the error has {off:.4f} times the norm of the right gradient")
    print("WRONG: the gradient is another" if off > 1e-4 else "right: the gradient is the same")
    raise SystemExit(3 if off > 1e-4 else 0)
