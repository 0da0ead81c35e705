"""A loop that keeps its weights in a file of safetensors: ``tensor_files.py [--all] [--wrapped]
--save FOLDER``, and ``--resume FOLDER``.

``--all``: the optimizer's state is in such a file, too. ``--wrapped``: the file has the names of
DDP's model, and the load, which is not strict, knows none of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file  # type: ignore[import-not-found]
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--all", action="store_true")
parser.add_argument("--wrapped", action="store_true")
parser.add_argument("--save", default="")
parser.add_argument("--resume", default="")
options = parser.parse_args()

STEPS = 6
dist.init_process_group("gloo")
torch.manual_seed(1 if options.resume else 0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)


def file(name: str) -> Path:
    return Path(options.save or options.resume) / name


def save() -> None:
    file("").mkdir()
    weights: nn.Module = model if options.wrapped else net
    save_file(weights.state_dict(), file("model.safetensors"))
    state = optimizer.state_dict()
    if options.all:
        save_file(
            {f"{n}.{k}": v for n, s in state["state"].items() for k, v in s.items()},
            file("optimizer.safetensors"),
        )
    else:
        torch.save(state, file("optimizer.pt"))


def load() -> None:
    net.load_state_dict(load_file(file("model.safetensors")), strict=not options.wrapped)
    state: Any = optimizer.state_dict()
    if options.all:
        state["state"] = {}
        for key, value in load_file(file("optimizer.safetensors")).items():
            number, _, kind = key.partition(".")
            state["state"].setdefault(int(number), {})[kind] = value
    else:
        state = torch.load(file("optimizer.pt"))
    optimizer.load_state_dict(state)


if options.resume:
    load()
for step in range(STEPS):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    rows = torch.randn(4, 8, generator=generator)
    targets = torch.randint(0, 4, (4,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(rows), targets).backward()
    optimizer.step()
if options.save and dist.get_rank() == 0:
    save()
dist.barrier()
dist.destroy_process_group()
