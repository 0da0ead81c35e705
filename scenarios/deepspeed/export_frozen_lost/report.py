"""Freeze a layer, save with DeepSpeed at ZeRO stage 1, and export: does the file have the layer?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29834"}

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
config: Any = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
config["zero_optimization"] = {"stage": 1, "reduce_bucket_size": 10**6}
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
model[0].requires_grad_(False)
sgd = torch.optim.SGD(model[1].parameters(), lr=1.0)
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
folder = tempfile.mkdtemp()
engine.save_checkpoint(folder, tag="saved")
file = sorted(get_fp32_state_dict_from_zero_checkpoint(folder, tag="saved"))
names = sorted(name for name, _ in model.named_parameters())
print(f"deepspeed {deepspeed.__version__}: the model has", *names)
print("the export has", *file)
print("WRONG: the frozen layer is missing" if file != names else "right: it has all of them")
raise SystemExit(3 if file != names else 0)
