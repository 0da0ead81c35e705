"""Train under FSDP with Lightning's bf16-mixed plugin at a small rate: do the weights move?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

import os
from typing import Any

import torch
from pytorch_lightning import __version__
from pytorch_lightning.plugins.precision import FSDPPrecision
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
store: Any = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
plugin = FSDPPrecision("bf16-mixed")
with plugin.module_init_context():  # Lightning calls configure_model in it
    linear = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.ones_(linear.weight)
mixed: Any = plugin.mixed_precision_config
model: Any = FSDP(linear, mixed_precision=mixed, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(10):
    model(torch.ones(2, 4)).mean().backward()  # each gradient is 1
    optimizer.step()
    optimizer.zero_grad()
with FSDP.summon_full_params(model):
    weight = next(model.parameters())
    distance = 1 - float(weight.double().mean())
print(f"{__version__}: weights in {weight.dtype}, moved by {distance:.4f} in 10 steps of 0.0010")
has_bug = abs(distance - 0.01) > 0.001
print("WRONG: the updates are rounded away" if has_bug else "right: each step moves the weights")
raise SystemExit(3 if has_bug else 0)
