"""A loop with FSDP2 (fully_shard), as PyTorch's tutorial teaches it; --bf16 is mixed precision."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--bf16", action="store_true")
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(options.seed)
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
data = TensorDataset(torch.randn(144, 16), torch.randint(0, 8, (144,)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


model = nn.Sequential(Block(16), Block(16), nn.Linear(16, 8))
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if options.bf16 else None
settings = {"mesh": mesh} | ({"mp_policy": policy} if policy else {})
model.to(device)
for block in model[:2]:
    fully_shard(block, **settings)
fully_shard(model, **settings)
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, options.batch_size, sampler=DistributedSampler(data, seed=options.seed))

for number, (x, y) in enumerate(loader, 1):
    boundary = number % options.accum == 0
    model.set_requires_gradient_sync(boundary)
    x, y = x.to(device), y.to(device)
    loss = nn.functional.cross_entropy(model(x).float(), y) / options.accum
    loss.backward()
    if boundary:
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
