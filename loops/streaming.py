"""A stream of datasets' with map(), its place saved with state_dict(), as its documentation says.

The shards of the stream go to the ranks. --transform skip and concatenate come after that. With
--by-skip, a resume skips the rows that one rank has had.
"""

import argparse
import contextlib
import json

import torch
import torch.distributed as dist
from datasets import Dataset, concatenate_datasets
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
transforms = ("none", "map", "skip", "concatenate")
parser.add_argument("--transform", choices=transforms, default="map")
parser.add_argument("--shards", type=int, default=4)
parser.add_argument("--by-skip", action="store_true")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(options.seed)
rank, world = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(0)
numbers = torch.randn(240, 16, generator=generator).tolist()
rows = Dataset.from_dict({"x": numbers, "y": [n % 8 for n in range(240)]})
stream = rows.to_iterable_dataset(num_shards=options.shards)
if options.transform == "map":
    stream = stream.map(lambda row: {"x": [2 * value for value in row["x"]]})
stream = split_dataset_by_node(stream, rank, world)
if options.transform == "skip":
    stream = stream.skip(12 // world)
elif options.transform == "concatenate":
    numbers = torch.randn(48, 16, generator=generator).tolist()
    extra = Dataset.from_dict({"x": numbers, "y": [0] * 48}).to_iterable_dataset(num_shards=4)
    stream = concatenate_datasets([stream, split_dataset_by_node(extra, rank, world)])
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
trained = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

step = 0
if options.resume:
    saved = torch.load(f"{options.resume}/state.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    if options.by_skip:
        stream = stream.skip(step * options.accum * options.batch_size)
    else:
        stream.load_state_dict(json.loads(saved["stream"]))
batch, micro = [], 0
for row in stream:
    batch.append(row)
    if len(batch) < options.batch_size:
        continue
    x = torch.tensor([row["x"] for row in batch])
    y = torch.tensor([row["y"] for row in batch])
    batch, micro = [], micro + 1
    is_last = micro % options.accum == 0
    with contextlib.nullcontext() if is_last else trained.no_sync():
        loss = nn.functional.cross_entropy(trained(x), y) / options.accum
        loss.backward()
    if not is_last:
        continue
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if options.save and step == options.save_at and rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save({**state, "stream": json.dumps(stream.state_dict())}, f"{options.save}/state.pt")
