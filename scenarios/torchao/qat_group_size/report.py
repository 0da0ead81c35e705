"""Prepare a layer for int4 with groups of 32 in torchao: in which groups are its weights rounded?

Needs torch and torchao, and no GPU. The exit code is 3 if the bug is there."""

import torch
import torchao
from torchao.quantization import Int4WeightOnlyConfig, quantize_
from torchao.quantization.qat import QATConfig

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 8, bias=False, dtype=torch.bfloat16))
quantize_(model, QATConfig(Int4WeightOnlyConfig(group_size=32), step="prepare"))
weight = model(torch.eye(512, dtype=torch.bfloat16)).T  # as the forward pass uses it
most = {n: max(len(group.unique()) for group in weight.reshape(-1, n)) for n in (32, 64, 128, 256)}
print(f"torchao {torchao.__version__}: different values in a group; int4 has 16")
for size, values in most.items():
    print(f"groups of {size}: {values}")
print(
    "WRONG: the groups have 128 weights" if most[64] <= 16 else "right: the groups have 32 weights"
)
raise SystemExit(3 if most[64] <= 16 else 0)
