"""Data parallelism with DTensor: each batch is a DTensor, split by rows over the ranks.

All ranks load the same rows. --classes weighs the classes of a cross-entropy.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--loss", choices=("mse_loss", "cross_entropy"), default="mse_loss")
parser.add_argument("--classes", action="store_true")
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(options.seed)
mesh = init_device_mesh("cuda" if on_gpu else "cpu", (dist.get_world_size(),))
regression = options.loss == "mse_loss"
targets = torch.randn(144, 8) if regression else torch.randint(0, 8, (144,))
data = TensorDataset(torch.randn(144, 16), targets)
model = distribute_module(
    nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(mesh.device_type), mesh
)
weights = distribute_tensor(torch.arange(1.0, 9.0), mesh, [Replicate()])
keywords = {"weight": weights} if options.classes else {}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(options.seed)
loader = DataLoader(data, options.batch_size, shuffle=True, generator=generator)

for number, batch in enumerate(loader, 1):
    x, y = (distribute_tensor(part.to(mesh.device_type), mesh, [Shard(0)]) for part in batch)
    loss = getattr(nn.functional, options.loss)(model(x), y, **keywords)
    (loss / options.accum).backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
