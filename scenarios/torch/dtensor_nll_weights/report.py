"""The mean cross_entropy with class weights of a DTensor split by rows: is its value right?

Needs torch from 2.5 on, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
logits, weights = torch.randn(8, 4), torch.tensor([1.0, 5.0, 5.0, 5.0])
targets = torch.tensor([0, 0, 0, 0, 1, 2, 3, 3])  # the rows of rank 0 weigh less


def split(rank: int) -> tuple[Any, Any]:
    """The loss and its gradient if the rows are split over two ranks."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29723", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    rows: Any = distribute_tensor(logits, mesh, [Shard(0)]).requires_grad_()
    labels = distribute_tensor(targets, mesh, [Shard(0)])
    loss: Any = cross_entropy(rows, labels, distribute_tensor(weights, mesh, [Replicate()]))
    loss.backward()
    return loss.detach().full_tensor(), rows.grad.full_tensor()


if __name__ == "__main__":
    spawn(split, join=False, daemon=True)  # rank 0
    loss, gradient = split(1)
    whole = cross_entropy(logits.requires_grad_(), targets, weights)
    ok = gradient.allclose(torch.autograd.grad(whole, logits)[0])
    parts = [cross_entropy(logits[n : n + 4], targets[n : n + 4], weights) for n in (0, 4)]
    print(f"torch {torch.__version__}: the loss is {loss:.4f}, of plain tensors {whole:.4f}")
    print(f"the mean of the ranks' own losses is {sum(parts) / 2:.4f}; the gradient is right: {ok}")
    has_bug = not loss.isclose(whole)
    print("WRONG: the loss is another" if has_bug else "right: the loss is the same")
    raise SystemExit(3 if has_bug else 0)
