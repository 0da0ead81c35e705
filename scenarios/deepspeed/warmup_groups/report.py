"""Warm two parameter groups up with DeepSpeed's WarmupLR: does each reach its own rate?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29626"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(1, 1)
rates = {"weight": 0.1, "bias": 0.2}
groups = [{"params": [model.get_parameter(name)], "lr": rate} for name, rate in rates.items()]
warmup = {"warmup_num_steps": 4, "warmup_type": "linear"}
scheduler = {"type": "WarmupLR", "params": warmup}
config = {"train_batch_size": 1, "gradient_clipping": 0.0, "scheduler": scheduler}
sgd = torch.optim.SGD(groups)
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
for _ in range(6):
    before = {name: float(part) for name, part in model.named_parameters()}
    engine.backward(engine(torch.ones(1, 1)).sum())  # both gradients are 1
    engine.step()
print("deepspeed", deepspeed.__version__, "behind the warmup, at a gradient of 1:")
moves = {name: before[name] - float(part) for name, part in model.named_parameters()}
for name, rate in rates.items():
    print(f"the {name}, with lr={rate}, moves by {moves[name]:.4f}")
bug = abs(moves["bias"] - rates["bias"]) > 0.01
print("WRONG: the bias has the weight's rate" if bug else "right: each has its own rate")
raise SystemExit(3 if bug else 0)
