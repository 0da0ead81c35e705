"""Clip gradients in bf16 on two tensor-parallel ranks: do the copies of a weight stay equal?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29615"}

import deepspeed
import torch
from torch.multiprocessing.spawn import spawn


def moves(rank: int) -> list[float]:
    """How far the first step of SGD with rate 1 moves each rank's copy of the weight."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, rank=rank, world_size=2)
    layer, ones, steps = torch.nn.Linear(1, 1), torch.ones(1, 1, dtype=torch.bfloat16), [0.0, 0.0]
    torch.nn.init.zeros_(layer.weight)
    layer.bias.tensor_model_parallel = True  # type: ignore  # a part, not a copy
    ranks = deepspeed.runtime.pipe.topology.PipeModelDataParallelTopology(1, num_mp=2, num_dp=1)
    model = deepspeed.PipelineModule([layer], topology=ranks, loss_fn=lambda y, _: y.mean())
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    config |= {"data_types": {"grad_accum_dtype": "fp32"}, "zero_allow_untested_optimizer": True}
    config |= {"gradient_clipping": 0.5, "steps_per_print": 9}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    engine.train_batch(iter([(ones, ones)]))  # all gradients are 1
    torch.distributed.all_gather_object(steps, -float(layer.weight))
    return steps


if __name__ == "__main__":
    rank_0 = spawn(moves, join=False, daemon=True)
    copy1, copy2 = moves(1)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the copies move by {copy1:.4f} and {copy2:.4f}")
    print("WRONG: only the first one is clipped" if copy1 != copy2 else "right: both are clipped")
    raise SystemExit(3 if copy1 != copy2 else 0)
