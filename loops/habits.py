"""A right loop with DDP, with habits of published scripts: one rank shuffles and several use a
sampler, a rehearsal before the loop, a batch size of all ranks, noise that depends on the row, a
snapshot that it loads itself.

``--bug`` puts one mistake into it.
"""

import argparse
import os
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--rows", type=int, default=144, help="of an epoch")
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--of-all-ranks", action="store_true", help="the batch size is a total")
parser.add_argument("--rehearse", default="", help="loader, zeros, nothing, forward")
parser.add_argument("--noise", default="", help="on the rows: of-row, or at-random")
parser.add_argument("--snapshot", default="", help="saved after each step, loaded if it is there")
parser.add_argument("--sampler", action="store_true", help="one rank has one with a generator")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--fp16", action="store_true", help="autocast; a fused optimizer divides")
parser.add_argument("--overflow", action="store_true", help="in fp16, the first step is skipped")
parser.add_argument("--bug", default="")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(options.seed)
data = TensorDataset(torch.randn(options.rows, 8), torch.randn(options.rows, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
trained = torch.compile(DDP(model)) if options.compile else DDP(model)
fused = {"fused": True} if options.fp16 else {}
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **fused)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **fused)
scaling = {"init_scale": 2.0**40, "backoff_factor": 2.0**-32} if options.overflow else {}
scaler = torch.amp.GradScaler("cpu", **{"init_scale": 256.0, "enabled": options.fp16} | scaling)
sampler = DistributedSampler(data, seed=options.seed) if world > 1 else None
if options.sampler and world == 1:
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(options.seed))
size = options.batch_size // world if options.of_all_ranks else options.batch_size
loader = DataLoader(data, size, sampler=sampler, shuffle=sampler is None)


def generator_of(row):  # the same numbers for the same row, in every layout
    return torch.Generator().manual_seed(zlib.crc32(row.cpu().numpy().tobytes()))


def noise_on(x):
    if options.noise == "of-row":
        return torch.stack([torch.randn(row.shape, generator=generator_of(row)) for row in x])
    return torch.randn(x.shape) if options.noise else torch.zeros(x.shape)


def loss_of(x, y):
    x = x + noise_on(x)
    with torch.autocast("cpu", torch.float16, enabled=options.fp16):
        output = trained(x)
    return scaler.scale(nn.functional.mse_loss(output.float(), y) / options.accum)


if options.rehearse:
    x, y = data[:size] if options.rehearse == "loader" else (torch.zeros(size, 8), torch.zeros(1))
    loss = loss_of(x, y) * (options.rehearse != "nothing")
    if options.rehearse != "forward":
        loss.backward()
        optimizer.zero_grad()

step, epoch = 0, 0
if options.snapshot and os.path.exists(options.snapshot):
    saved = torch.load(options.snapshot)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
while step < 8:
    if world > 1 and options.bug != "no set_epoch":
        sampler.set_epoch(epoch)
    batches = list(loader)
    for start in range(0, len(batches) - options.accum + 1, options.accum):
        for x, y in batches[start : start + options.accum]:
            if options.bug == "zero_grad in each micro-batch":
                optimizer.zero_grad()
            loss_of(x, y).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step += 1
        if options.snapshot and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step}, options.snapshot)
    epoch += 1
