"""Train two numbers with Adam in bf16 without ZeRO: how far is the first step?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29542"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
adam = torch.optim.Adam(model.parameters(), lr=0.25)
config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
engine = deepspeed.initialize(model=model, optimizer=adam, config=config)[0]
state: dict[str, torch.Tensor] = next(iter(adam.state.values()), {})
print(f"deepspeed {deepspeed.__version__}: Adam has counted {int(state.get('step', 0))} steps")
engine.backward(engine(torch.ones(1, 2, dtype=torch.bfloat16)).sum())
engine.step()
step = 1 - float(adam.param_groups[0]["params"][0].detach().float().mean())
print(f"the first step is {step:.4f}, and Adam's is {0.25:.4f}: {step / 0.25:.3f} times")
bug = abs(step / 0.25 - 1) > 0.01
print("WRONG: Adam has counted a step too many" if bug else "right: the step is Adam's")
raise SystemExit(3 if bug else 0)
