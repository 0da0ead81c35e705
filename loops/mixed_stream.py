"""Streams of datasets' that are mixed at random, and read by the workers of a loader.

A resume leaves out the batches that are done.
"""

import argparse
import itertools

import torch
from datasets import Dataset, interleave_datasets
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

torch.manual_seed(options.seed)
numbers = torch.randn(2, 144, 16, generator=torch.Generator().manual_seed(0)).tolist()
sources = [
    Dataset.from_dict({"x": x, "y": [n % 8 for n in range(144)]}).to_iterable_dataset(num_shards=2)
    for x in numbers
]
stream = interleave_datasets(sources, probabilities=[0.5, 0.5], seed=options.seed)
loader = DataLoader(
    stream.with_format("torch"), options.batch_size, num_workers=options.workers, drop_last=True
)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

start = 0
if options.resume:
    saved = torch.load(f"{options.resume}/state.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]
for step, batch in enumerate(itertools.islice(loader, start, 8), start + 1):
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()
    if options.save and step == options.save_at:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{options.save}/state.pt")
