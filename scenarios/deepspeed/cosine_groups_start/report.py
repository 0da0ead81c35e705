"""Train two parameter groups under WarmupCosineLR: do both begin with a rate of 0?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29694"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD([{"params": [part]} for part in model.parameters()], lr=0.1)
warmup = {"total_num_steps": 20, "warmup_num_steps": 4, "warmup_type": "linear"}
config = {"train_batch_size": 1, "scheduler": {"type": "WarmupCosineLR", "params": warmup}}
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
print("deepspeed", deepspeed.__version__, "- how far steps move two weights with gradient 1:")
rates = []
for _ in range(4):
    before = torch.cat([part.detach().flatten().clone() for part in model.parameters()])
    engine.backward(engine(torch.ones(1, 1)).sum())
    engine.step()
    after = torch.cat([part.detach().flatten() for part in model.parameters()])
    rates.append((before - after).tolist())
    print(*(f"{rate:.4f}" for rate in rates[-1]))
bug = abs(rates[0][0] - rates[0][1]) > 1e-4
print("WRONG: the groups begin with different rates" if bug else "right: they begin with one rate")
raise SystemExit(3 if bug else 0)
