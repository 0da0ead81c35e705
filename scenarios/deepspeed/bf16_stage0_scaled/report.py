"""Take steps of SGD in bf16 without ZeRO: is each step the learning rate times the gradient?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
from fractions import Fraction

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29602"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
config |= {"gradient_clipping": 0}
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
print("deepspeed", deepspeed.__version__)
moves = []
for gradient in (1, 2, 4):
    master = sgd.param_groups[0]["params"][0]  # the fp32 weight, which the step changes
    before = float(master)
    engine.backward(gradient * engine(torch.ones(1, 1, dtype=torch.bfloat16)).sum())
    engine.step()
    moves.append(Fraction(before - float(master)))
    print(f"gradient {gradient}, learning rate 1: the weight moves by {moves[-1]}")
divided, summed = moves[0] < 0.1, moves[1] / moves[0] > 2.1
faults = ["divided by 65536"] * divided + ["summed over the steps"] * summed
print(f"WRONG: gradients are {' and '.join(faults)}" if faults else "right: moves are gradients")
raise SystemExit(3 if faults else 0)
