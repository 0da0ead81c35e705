"""Train at ZeRO stage 2 on two ranks with gradients of 1 and 3: does each weight move by their mean?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29831"}

import deepspeed
import torch
from torch.multiprocessing.spawn import spawn


def moves(rank: int) -> list[float]:
    """How far the first step of SGD with rate 1 moves each weight."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, rank=rank, world_size=2)
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    zero = {"stage": 2, "contiguous_gradients": False, "reduce_bucket_size": 1000}
    config = {"train_batch_size": 2, "zero_optimization": zero, "gradient_clipping": 0}
    config |= {"zero_allow_untested_optimizer": True}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    gradient = (1.0, 3.0)[rank]
    engine.backward(engine(torch.full((1, 4), gradient)).sum())
    engine.step()
    return [-float(weight) for weight in model.weight.flatten()]


if __name__ == "__main__":
    rank_0 = spawn(moves, join=False, daemon=True)
    steps = moves(1)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the weights move by", *steps, "and 2 is right")
    bug = steps != [2.0] * 4
    print("WRONG: the ranks' gradients are not averaged" if bug else "right: they are averaged")
    raise SystemExit(3 if bug else 0)
