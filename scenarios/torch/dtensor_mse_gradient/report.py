"""Is the gradient of a mean mse_loss right if predictions and targets are split DTensors?

Needs torch alone, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

LOSSES = ("l1_loss", "mse_loss", "smooth_l1_loss", "binary_cross_entropy")
predictions, targets = torch.arange(64.0).reshape(2, 8, 4).sin().sigmoid()  # between 0 and 1


def gradients(rank: int) -> list[torch.Tensor]:
    """The gradients of the losses if the rows are split over two ranks."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29727", rank=rank, world_size=2)
    mesh, wholes = init_device_mesh("cpu", (2,)), []
    for name in LOSSES:
        rows, goals = (distribute_tensor(each, mesh, [Shard(0)]) for each in (predictions, targets))
        getattr(functional, name)(rows.requires_grad_(), goals).backward()
        wholes.append(rows.grad.full_tensor())
    return wholes


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    print("torch", torch.__version__)
    has_bug = False
    for name, gradient in zip(LOSSES, gradients(1), strict=True):
        plain = predictions.clone().requires_grad_()
        getattr(functional, name)(plain, targets).backward()
        times = float(gradient.norm() / plain.grad.norm())
        print(f"{name}: the gradient is {times:.4g} times the right one")
        has_bug |= abs(times - 1) > 1e-3
    print("WRONG: gradients are multiplied by the ranks" if has_bug else "right: all are equal")
    raise SystemExit(3 if has_bug else 0)
