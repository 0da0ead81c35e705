"""Save ZeRO-3 weights of 1 as "earlier", of 2 as "later", and load "earlier": which ones come?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29627"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
config: Any = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
config["zero_optimization"] = {"stage": 3, "reduce_bucket_size": 10**6}


def engine(weight: float) -> Any:
    """An engine over a model with this one weight."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]


folder, new = tempfile.mkdtemp(), engine(5.0)
engine(1.0).save_checkpoint(folder, tag="earlier")
engine(2.0).save_checkpoint(folder, tag="later")
path, _ = new.load_checkpoint(folder, tag="earlier", load_optimizer_states=False)
with deepspeed.zero.GatheredParameters(list(new.module.parameters())):
    loaded = float(new.module.weight)
print(f"deepspeed {deepspeed.__version__}: the weight of 'earlier' is 1, of 'later' 2")
print(f"the path is that of {os.path.basename(os.path.dirname(path))!r}; the weight is {loaded:g}")
print("WRONG: another checkpoint was loaded" if loaded != 1 else "right: the weight of the tag")
raise SystemExit(3 if loaded != 1 else 0)
