"""A loop with DTensor's tensor parallelism, as PyTorch's tutorial teaches it.

All ranks see the same rows.

``--bug`` computes a log_softmax within ``loss_parallel``, whose backward is not that of its forward
in torch: all layouts with several ranks have it, and the tutorial does not do it.
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--loss-parallel", action="store_true")
parser.add_argument("--sequence", action="store_true", help="the norm works on parts of the rows")
parser.add_argument("--bug", default="")
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(options.seed)
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
VOCABULARY, WIDTH, LENGTH = 48, 32, 12
data = TensorDataset(torch.randint(1, VOCABULARY, (144, LENGTH)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


model = nn.Sequential(
    nn.Embedding(VOCABULARY, WIDTH), Block(), Block(), nn.Linear(WIDTH, VOCABULARY)
)
output = {"output_layouts": Shard(-1), "use_local_output": False} if options.loss_parallel else {}
if options.sequence:
    plan = {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))}
    plan["3"] = ColwiseParallel(
        input_layouts=Shard(1), **(output or {"output_layouts": Replicate()})
    )
    for block in "12":
        plan |= {
            f"{block}.norm": SequenceParallel(),
            f"{block}.up": ColwiseParallel(input_layouts=Shard(1)),
            f"{block}.down": RowwiseParallel(output_layouts=Shard(1)),
        }
else:
    plan = {"3": ColwiseParallel(**(output or {"output_layouts": Replicate()}))}
    for block in "12":
        plan |= {f"{block}.up": ColwiseParallel(), f"{block}.down": RowwiseParallel()}
model.to(device)
parallelize_module(model, mesh, plan)
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, foreach=False
    )  # not all are DTensors
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
loader = DataLoader(
    data, options.batch_size, shuffle=True, generator=torch.Generator().manual_seed(0)
)

for number, (ids,) in enumerate(loader, 1):
    with loss_parallel() if options.loss_parallel else contextlib.nullcontext():
        ids = ids.to(device)
        logits = model(ids)
        scores = logits[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, ids[:, 1:].flatten())
        if options.bug == "log_softmax within loss_parallel":
            loss = loss - nn.functional.log_softmax(scores, -1).mean()
        (loss / options.accum).backward()
    if number % options.accum == 0:
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
