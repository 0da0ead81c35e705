"""Train in bf16 on two ranks with gradients of 1 and 3: does each weight move by their mean?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29612"}

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
    config = {"train_batch_size": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    config |= {"data_types": {"grad_accum_dtype": "fp32"}, "zero_allow_untested_optimizer": True}
    config |= {"gradient_clipping": 0}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    gradient = (1.0, 3.0)[rank]
    engine.backward(engine(torch.full((1, 4), gradient, dtype=torch.bfloat16)).sum())
    engine.step()
    return [-float(each) for each in model.weight.flatten()]


if __name__ == "__main__":
    rank_0 = spawn(moves, join=False, daemon=True)
    steps = moves(1)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the weights move by", *steps, "and 2 is right")
    bug = steps != [2.0] * 4
    print("WRONG: the ranks' gradients are not averaged" if bug else "right: they are averaged")
    raise SystemExit(3 if bug else 0)
