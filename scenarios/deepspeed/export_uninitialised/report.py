"""Save a model whose weights are all 7 with DeepSpeed, and export them: are they 7?

Needs torch, deepspeed and huggingface_hub, and no GPU. The exit code is 3 if the bug is there."""

import inspect
import os
import tempfile
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29616"}

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
config: Any = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
config["zero_optimization"] = {"stage": 2, "reduce_bucket_size": 10**6}
model = torch.nn.Linear(2, 2)
for parameter in model.parameters():
    torch.nn.init.constant_(parameter, 7.0)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
folder, out = tempfile.mkdtemp(), tempfile.mkdtemp()
engine.save_checkpoint(folder, tag="saved")
torch.use_deterministic_algorithms(True)  # memory that nobody initialises is nan, in each run
file = os.path.join(out, "pytorch_model.bin")
export = convert_zero_checkpoint_to_fp32_state_dict
old = "output_file" in inspect.signature(export).parameters
export(folder, file if old else out, tag="saved")
weights = torch.load(file)
print(f"deepspeed {deepspeed.__version__}: all weights are 7. The exported file has:")
for name, weight in weights.items():
    print(name, weight.tolist())
is_saved = all(bool((weight == 7).all()) for weight in weights.values())
print("right: the file has the weights" if is_saved else "WRONG: these are other numbers")
raise SystemExit(3 if not is_saved else 0)
