"""Add a number to all logits of DeepSpeed's top-3 gate: does it still send as many tokens?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}

import deepspeed
import torch
from deepspeed.moe.sharded_moe import topkgating

print("deepspeed", deepspeed.__version__, "64 tokens choose 3 of 8 experts")
logits = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
sent = []
for shift in (4.0, 0.0, -4.0):
    dispatched = topkgating(logits + shift, k=3, capacity_factor=1.0, min_capacity=4)[2]
    sent.append(int(dispatched.sum()))
    print(f"logits around {shift:g}: {sent[-1] / 64:.2f} experts for a token")
bug = len(set(sent)) > 1
print("WRONG: negative logits are dropped" if bug else "right: the shift changes nothing")
raise SystemExit(3 if bug else 0)
