"""A shuffled stream of datasets' that a DataLoader reads for several epochs, with set_epoch().

An epoch has 24 rows. A resume sets the epoch, and leaves out the batches that are done.
"""

import argparse

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--persistent", action="store_true", help="a worker that lives for all epochs")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

torch.manual_seed(options.seed)
numbers = torch.randn(24, 16, generator=torch.Generator().manual_seed(0)).tolist()
rows = Dataset.from_dict({"x": numbers, "y": [n % 8 for n in range(24)]})
stream = rows.to_iterable_dataset().shuffle(seed=options.seed, buffer_size=24)
workers = {"num_workers": 1, "persistent_workers": True} if options.persistent else {}
loader = DataLoader(stream.with_format("torch"), options.batch_size, **workers)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

start = 0
if options.resume:
    saved = torch.load(f"{options.resume}/state.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["batches"]
batches = 24 // options.batch_size
for epoch in range(start // batches, 4):
    loader.dataset.set_epoch(epoch)
    for number, batch in enumerate(loader, epoch * batches):
        if number < start:
            continue
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"]) / options.accum
        loss.backward()
        if (number + 1) % options.accum:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if options.save and number + 1 == options.save_at * options.accum:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "batches": number + 1}, f"{options.save}/state.pt")
