"""torchdata's StatefulDataLoader, whose state is saved and loaded, as its documentation teaches it.

Three epochs of 24 rows. --distributed takes StatefulDistributedSampler.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--distributed", action="store_true")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(24, 16, generator=generator)
data = TensorDataset(inputs, torch.randint(0, 8, (24,), generator=generator))
torch.manual_seed(options.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
trained = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if options.distributed:
    sampler = StatefulDistributedSampler(data, seed=options.seed)
    loader = StatefulDataLoader(data, options.batch_size, sampler=sampler)
else:
    sampler = None
    loader = StatefulDataLoader(data, options.batch_size, shuffle=True)

step = begun = 0
if options.resume:
    saved = torch.load(f"{options.resume}/state{dist.get_rank()}.pt", weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    step, begun = saved["step"], saved["epoch"]
micro = 0
for epoch in range(begun, 3):
    if sampler is not None and not (options.resume and epoch == begun):  # its state has the epoch
        sampler.set_epoch(epoch)
    for x, y in loader:
        micro += 1
        is_last = micro % options.accum == 0
        with contextlib.nullcontext() if is_last else trained.no_sync():
            (nn.functional.cross_entropy(trained(x), y) / options.accum).backward()
        if not is_last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if options.save and step == options.save_at and step % 2:  # within an epoch
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"loader": loader.state_dict(), "step": step, "epoch": epoch}
            torch.save(state, f"{options.save}/state{dist.get_rank()}.pt")
    if options.save and step == options.save_at and step % 2 == 0:  # after an epoch
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"loader": loader.state_dict(), "step": step, "epoch": epoch + 1}
        torch.save(state, f"{options.save}/state{dist.get_rank()}.pt")
