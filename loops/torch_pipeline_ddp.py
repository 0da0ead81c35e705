"""A whole pipeline of torch.distributed.pipelining on each rank, with DDP around its two stages.

The ranks are replicas, which see different rows.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True, help="rows of a rank's call")
parser.add_argument("--accum", type=int, default=1, help="micro-batches of a call")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--schedule", default="Interleaved1F1B", help="without the word Schedule")
options = parser.parse_args()

VOCABULARY, LENGTH, WIDTH, STAGES = 32, 8, 16, 2
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")
names = ("replica", "stage")
mesh = init_device_mesh(device.type, (dist.get_world_size(), 1), mesh_dim_names=names)
replicas, pipeline = (mesh[name].get_group() for name in names)
torch.manual_seed(options.seed)
ids = torch.randint(0, VOCABULARY, (144, LENGTH + 1))
data = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


parts = [
    nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Block(), Block()),
    nn.Sequential(Block(), Block(), nn.Linear(WIDTH, VOCABULARY)),
]
models = [DDP(part.to(device), process_group=replicas) for part in parts]
stages = [PipelineStage(m, n, STAGES, device, group=pipeline) for n, m in enumerate(models)]
kind = getattr(schedules, f"Schedule{options.schedule}")
schedule = kind(stages, options.accum, loss_fn=loss)
optimizer = torch.optim.AdamW([p for model in models for p in model.parameters()], lr=1e-2)
size = options.batch_size * options.accum
sampler = DistributedSampler(data, seed=options.seed)
for ids, labels in DataLoader(data, size, sampler=sampler):
    schedule.step(ids.to(device), target=labels.to(device))
    optimizer.step()
    optimizer.zero_grad()
