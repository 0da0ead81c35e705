"""A loop in plain torch, with DDP, that has parts of DeepSpeed and not its engine.

--curriculum is the sampler of its data efficiency library, whose place is saved. --recompute is its
activation checkpointing, of a layer with an argument that is no tensor.
"""

import argparse
import shutil

import deepspeed
import torch
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--curriculum", action="store_true")
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

deepspeed.init_distributed(dist_backend="gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(options.seed)
rows = 36 if options.curriculum else 144  # an epoch of three steps: the next has another order
data = TensorDataset(torch.randn(rows, 16), torch.randint(0, 8, (rows,)))
choices = {"checkpoint_in_cpu": False, "contiguous_checkpointing": False, "num_checkpoints": 1}
checkpointing.configure(None, partition_activations=True, **choices)


class Recomputed(nn.Module):
    """A layer whose arguments are a mask, which may be missing, a factor and a bias."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.register_buffer("factor", torch.linspace(1, 3, 32))

    def layer(self, x, mask, factor, bias=None):
        output = self.inner(x) if mask is None else self.inner(x) * mask
        output = output if factor is None else output * factor
        return output if bias is None else output + bias

    def forward(self, x):
        return checkpointing.checkpoint(self.layer, x, None, self.factor)


layer = Recomputed() if options.recompute else nn.Linear(32, 32)
model = DDP(nn.Sequential(nn.Linear(16, 32), layer, nn.GELU(), nn.Linear(32, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
clusters = "clusters"
saved = torch.load(f"{options.resume}/state.pt", weights_only=False) if options.resume else {}
if options.curriculum:
    if saved:
        shutil.rmtree(clusters, ignore_errors=True)
        shutil.copytree(f"{options.resume}/clusters", clusters)
    metric = {
        "difficulty_type": "value",
        "clustering_type": "single_cluster",
        "min_difficulty": 1,
        "max_difficulty": 10,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 100, "difficulty_step": 1},
    }
    learning = {"data_cluster_path": clusters, "curriculum_metrics": {"length": metric}}
    sampling = {"num_epochs": 10, "curriculum_learning": {"enabled": True, **learning}}
    config = {"seed": options.seed + 1, "data_sampling": {"enabled": True, **sampling}}
    group = deepspeed.comm.new_group(list(range(world)))
    sampler = DeepSpeedDataSampler(
        config, len(data), options.batch_size, rank, world, group, options.accum, rank
    )
else:
    sampler = BatchSampler(
        DistributedSampler(data, shuffle=False), options.batch_size, drop_last=True
    )
step = micro = 0
if saved:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler.load_state_dict(saved["sampler"])
    step = saved["step"]
for x, y in DataLoader(data, batch_sampler=sampler):
    micro += 1
    (nn.functional.cross_entropy(model(x), y) / options.accum).backward()
    if micro % options.accum:
        continue
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if options.save and step == options.save_at and rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save({**state, "sampler": sampler.state_dict()}, f"{options.save}/state.pt")
        shutil.copytree(clusters, f"{options.save}/clusters")
