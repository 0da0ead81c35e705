"""Recompute a layer that has mask=None under partition_activations: which gradients come?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617"}

import deepspeed
import torch
from deepspeed.runtime.activation_checkpointing import checkpointing

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
checkpointing.configure(None, partition_activations=True, num_checkpoints=1)


def layer(x: Any, mask: Any, factor: Any, bias: Any = None) -> Any:
    output = x if mask is None else x * mask
    output = output if factor is None else output * factor
    return output if bias is None else output + bias


def gradient(checkpointed: bool) -> list[float]:
    x, factor = torch.ones(3, requires_grad=True), torch.tensor([4.0, 5.0, 6.0])
    call: Any = checkpointing.checkpoint if checkpointed else lambda layer, *rest: layer(*rest)
    call(layer, x, None, factor).sum().backward()
    gradients: Any = x.grad
    return list(gradients.tolist())


came, right = gradient(True), gradient(False)
print(f"deepspeed {deepspeed.__version__}: the gradient is {came}; without checkpointing {right}")
print("WRONG: the recomputation had other arguments" if came != right else "right: as without")
raise SystemExit(3 if came != right else 0)
