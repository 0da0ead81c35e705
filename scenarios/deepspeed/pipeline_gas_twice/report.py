"""Accumulate four micro-batches in a pipeline of two stages: does each stage apply their mean?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29610"}

import deepspeed
import torch
from torch.multiprocessing.spawn import spawn


def moves(rank: int) -> list[float]:
    """How far the first step of SGD with rate 1 moves the weight of each stage."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, rank=rank, world_size=2)
    layers, ones = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)], torch.ones(1, 1)
    model = deepspeed.PipelineModule(layers, num_stages=2, loss_fn=lambda x, _: x.mean())
    weight = torch.nn.init.ones_(next(model.parameters()))  # so both gradients are 1
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"train_batch_size": 4, "gradient_accumulation_steps": 4}
    config |= {"gradient_clipping": 0, "steps_per_print": 9}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    engine.train_batch(iter([(ones, ones)] * 4))
    distances = [0.0, 0.0]
    torch.distributed.all_gather_object(distances, 1 - float(weight))
    return distances


if __name__ == "__main__":
    rank_0 = spawn(moves, join=False, daemon=True)
    steps = moves(1)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: each micro-batch has the gradient 1 on both stages")
    print("the steps of the stages are", *(f"{step:.4f}" for step in steps))
    bug = any(step < 0.99 for step in steps)
    print("WRONG: a gradient was divided twice" if bug else "right: none was divided twice")
    raise SystemExit(3 if bug else 0)
