"""Train with DeepSpeed's WarmupLR from 0 to 0.1: has the first step the learning rate 0?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29605"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(1, 1, bias=False)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
warmup = {"warmup_max_lr": 0.1, "warmup_num_steps": 4, "warmup_type": "linear"}
config = {"train_batch_size": 1, "scheduler": {"type": "WarmupLR", "params": warmup}}
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
rates = []
for _ in range(6):
    before = float(model.weight)
    engine.backward(engine(torch.ones(1, 1)).sum())  # the gradient is 1
    engine.step()
    rates.append(before - float(model.weight))
print(f"deepspeed {deepspeed.__version__}: steps with gradient 1 under WarmupLR from 0 to 0.1 are")
print(", ".join(f"{rate:.4f}" for rate in rates))
bug = rates[0] > 0.01
print("WRONG: the first uses the optimizer's own rate" if bug else "right: they begin with 0")
raise SystemExit(3 if bug else 0)
