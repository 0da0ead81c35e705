"""Train with Adam in bf16 without ZeRO, save and load: does Adam have its state again?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29601"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}


def initialized() -> tuple[Any, torch.optim.Adam]:
    model = torch.nn.Linear(1, 1, bias=False)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=adam, config=config)[0], adam


(engine, adam), (resumed, its_adam) = initialized(), initialized()
for _ in range(4):
    engine.backward(engine(torch.ones(1, 1, dtype=torch.bfloat16)).sum())
    engine.step()
folder = tempfile.mkdtemp()
engine.save_checkpoint(folder)
resumed.load_checkpoint(folder)
saved, loaded = (each.state_dict()["state"].get(0, {}) for each in (adam, its_adam))
print(f"deepspeed {deepspeed.__version__}: Adam's state")
for key in saved:
    print(f"{key}: saved {float(saved[key]):.4g}, loaded {float(loaded.get(key, 0)):.4g}")
lost = bool(saved["exp_avg"] != loaded.get("exp_avg", 0))
print("WRONG: Adam has the state of a new one" if lost else "right: Adam has its state again")
raise SystemExit(3 if lost else 0)
