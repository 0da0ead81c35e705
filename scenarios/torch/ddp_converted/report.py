"""Cast a module to float64 and back after it was wrapped in DDP: are gradients still averaged?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def gradients(rank: int) -> Any:
    """Both ranks' gradients, without and with the cast. Alone rank 0 has 1, rank 1 has 3."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29790", rank=rank, world_size=2)
    by_cast: Any = {False: [None, None], True: [None, None]}
    for cast, of_ranks in by_cast.items():
        ddp = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        if cast:
            ddp.double()
            ddp.float()
        ddp(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()
        torch.distributed.all_gather_object(of_ranks, ddp.module.weight.grad.item())
    torch.distributed.barrier()
    return by_cast


if __name__ == "__main__":
    rank_0 = spawn(gradients, join=False, daemon=True)  # torch before 2.3 needs the name
    for cast, pair in gradients(1).items():
        print(f"torch {torch.__version__}, cast after DDP: {cast}: gradients {pair}, right: 2, 2")
    print("WRONG: they are not averaged" if pair != [2, 2] else "right: each rank has the mean")
    raise SystemExit(3 if pair != [2, 2] else 0)
