"""Give the layers of a model numbers in self.id, at ZeRO stages 2 and 3: do they keep them?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29629"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")


class Expert(torch.nn.Linear):
    def __init__(self, number: Any) -> None:
        super().__init__(2, 2)
        self.id = number


for stage in (2, 3):
    model = torch.nn.Sequential(*map(Expert, (30, 10, 20)))
    config: Any = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
    config["zero_optimization"] = {"stage": stage, "reduce_bucket_size": 10**6}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    ids = [expert.id for expert in engine.module]
    print(f"deepspeed {deepspeed.__version__}, stage {stage}: {ids}, given were [30, 10, 20]")
wrong = ids != [30, 10, 20]
print("WRONG: stage 3 overwrites them" if wrong else "right: they keep them")
raise SystemExit(3 if wrong else 0)
