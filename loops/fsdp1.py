"""A loop with FSDP1 and HYBRID_SHARD: the ranks are replicas of each other, and shard nothing."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(options.seed)
shape = (dist.get_world_size(), 1)
data = TensorDataset(torch.randn(144, 16), torch.randint(0, 8, (144,)))
model = FSDP(
    nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)),
    sharding_strategy=ShardingStrategy.HYBRID_SHARD,
    device_mesh=init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard")),
    device_id=device,
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(data, options.batch_size, sampler=DistributedSampler(data, seed=options.seed))

for number, (x, y) in enumerate(loader, 1):
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device)) / options.accum
    loss.backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
