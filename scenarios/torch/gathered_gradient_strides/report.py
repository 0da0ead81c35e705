"""Gather rows over gloo, and compare them by einsum: is their gradient that of one process?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
import torch.distributed.nn
from torch.multiprocessing.spawn import spawn


def loss(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("ah,bh->ab", queries, documents)
    return (scores * torch.arange(float(len(documents)))).sum()


def gradients(rank: int) -> list[torch.Tensor]:
    """Of the documents of this rank: over two ranks, and in one process."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29819", rank=rank, world_size=2)
    generator = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(2, 6, 2, generator=generator)
    mine = documents.chunk(2)[rank].clone().requires_grad_()
    gathered = torch.cat(torch.distributed.nn.all_gather(mine))  # type: ignore[no-untyped-call]
    loss(queries.chunk(2)[rank], gathered).backward()
    whole = documents.clone().requires_grad_()
    loss(queries, whole).backward()
    return [mine.grad, whole.grad.chunk(2)[rank]]  # type: ignore[list-item, union-attr]


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    on_two, alone = gradients(1)
    print(f"torch {torch.__version__}, 2 ranks: {on_two.tolist()}")
    print(f"one process: {alone.tolist()}")
    wrong = not torch.allclose(on_two, alone)
    print("WRONG: the numbers are at other places" if wrong else "right: the same")
    raise SystemExit(3 if wrong else 0)
