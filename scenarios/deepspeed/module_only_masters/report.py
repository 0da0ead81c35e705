"""Load weights of 1 with load_module_only in bf16, and step with learning rate 0: are they still 1?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29603"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True, "bf16": {"enabled": True}}
config |= {"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}


def initialized(weight: float) -> Any:
    """An engine with BF16_Optimizer over a model with this one weight."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    return deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]


folder, saved, engine = tempfile.mkdtemp(), initialized(1.0), initialized(5.0)
saved.save_checkpoint(folder)
engine.load_checkpoint(folder, load_module_only=True, load_optimizer_states=False)
loaded = float(engine.module.weight)
engine.backward(engine(torch.ones(1, 1, dtype=torch.bfloat16)).sum())
engine.step()
after = float(engine.module.weight)
print(f"deepspeed {deepspeed.__version__}: the weight is 5 in a new engine, 1 in the checkpoint,")
print(f"{loaded:g} after the load, and {after:g} after the first step, whose learning rate is 0")
print("WRONG: the loaded weight is lost" if after != 1 else "right: it is still the loaded one")
raise SystemExit(3 if after != 1 else 0)
