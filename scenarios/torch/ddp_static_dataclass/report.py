"""Wrap a module that returns a dataclass in DDP with static_graph=True: are gradients averaged?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Output:
    logits: torch.Tensor


class Model(torch.nn.Linear):
    def forward(self, inputs: torch.Tensor) -> Any:
        return Output(super().forward(inputs))


def gradients(rank: int) -> Any:
    """Both ranks' gradients, without and with a static graph. Alone rank 0 has 1, rank 1 has 3."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29720", rank=rank, world_size=2)
    by_graph: Any = {False: [None, None], True: [None, None]}
    for static, of_ranks in by_graph.items():
        ddp = DistributedDataParallel(Model(1, 1, bias=False), static_graph=static)
        ddp(torch.full((1, 1), 1.0 + 2 * rank)).logits.sum().backward()
        torch.distributed.all_gather_object(of_ranks, ddp.module.weight.grad.item())
    torch.distributed.barrier()
    return by_graph


if __name__ == "__main__":
    rank_0 = spawn(gradients, join=False, daemon=True)  # torch before 2.3 needs the name
    for static, pair in gradients(1).items():
        print(f"torch {torch.__version__}, static_graph={static}: gradients {pair}, right: 2, 2")
    print("WRONG: they are not averaged" if pair != [2, 2] else "right: each rank has the mean")
    raise SystemExit(3 if pair != [2, 2] else 0)
