"""Train a step with Muon at ZeRO stage 1 on 2 ranks, with and without reduce_scatter: is it alike?

Needs torch and deepspeed from 0.18.5 on, and no GPU. The exit code is 3 if the bug is there."""

import os
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_PORT": "29837"}
os.environ["MASTER_ADDR"] = "127.0.0.1"
import deepspeed
import torch
from torch.multiprocessing.spawn import spawn


def apart(rank: int) -> float:
    """How far a step with reduce_scatter is from one without, on rows that each rank has alone."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
    deepspeed.init_distributed("gloo", False, rank=rank, world_size=2)
    weights = []
    for reduce_scatter in (True, False):
        torch.manual_seed(0)
        model: Any = torch.nn.Linear(16, 4, bias=False)
        model.weight.use_muon = True
        config = {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 1.0}}}
        zero = {"stage": 1, "reduce_scatter": reduce_scatter, "reduce_bucket_size": 1000}
        config |= {"gradient_clipping": 0.0, "zero_optimization": zero}
        engine = deepspeed.initialize(None, model, None, list(model.parameters()), config=config)[0]
        engine.backward((engine(torch.randn(2, 4, 16)[rank]) - 1).square().mean())
        engine.step()
        weights.append(model.weight.detach())
    return float((weights[0] - weights[1]).norm())


if __name__ == "__main__":
    rank_0 = spawn(apart, join=False, daemon=True)
    distance = apart(1)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the weights are {distance:.3g} apart")
    print("WRONG: ranks took other matrices" if distance > 0.1 else "right: they are the same")
    raise SystemExit(3 if distance > 0.1 else 0)
