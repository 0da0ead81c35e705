"""Save a weight of 1 at ZeRO stage 3, and load it with load_module_only=True: does it come?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29628"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")


def engine(weight: float, stage: int) -> Any:
    """An engine over a model with this one weight."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    config: Any = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
    config["zero_optimization"] = {"stage": stage, "reduce_bucket_size": 10**6}
    return deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]


print("deepspeed", deepspeed.__version__)
for stage in (2, 3):
    folder, new = tempfile.mkdtemp(), engine(5.0, stage)
    engine(1.0, stage).save_checkpoint(folder)
    new.load_checkpoint(folder, load_module_only=True)
    with deepspeed.zero.GatheredParameters(list(new.module.parameters()), enabled=stage == 3):
        loaded = float(new.module.weight)
    print(f"stage {stage}: saved was 1, before the load it was 5, after it {loaded:g}")
print("WRONG: stage 3 loads nothing" if loaded != 1 else "right: both stages load the weight")
raise SystemExit(3 if loaded != 1 else 0)
