"""A loop with DDP that saves with torch.distributed.checkpoint, as PyTorch's tutorials teach it."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
parser.add_argument("--asynchronous", action="store_true", help="save beside the next step")
parser.add_argument("--state-first", action="store_true", help="asked for before the first step")
parser.add_argument("--frozen", action="store_true", help="the first layer, in the third step")
options = parser.parse_args()

dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(options.seed)
data = TensorDataset(torch.randn(144, 16), torch.randint(0, 8, (144,)))
layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
model = DDP(layers, find_unused_parameters=options.frozen)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler = DistributedSampler(data, seed=options.seed)
batches = list(DataLoader(data, options.batch_size, sampler=sampler))


def state(step):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "progress": {"step": step}}


def freeze(step):
    layers[0].requires_grad_(not options.frozen or step != 2)


begun, saving = 0, None
if options.state_first:
    state(0)
if options.resume:
    saved = state(0)
    dcp.load(saved, checkpoint_id=f"{options.resume}/checkpoint")
    freeze(saved["progress"]["step"])
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
    )
    begun = saved["progress"]["step"]
for step in range(begun, len(batches) // options.accum):
    freeze(step)
    for x, y in batches[step * options.accum : (step + 1) * options.accum]:
        (nn.functional.cross_entropy(model(x), y) / options.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    if saving:
        saving.result()
        saving = None
    if options.save and step + 1 == options.save_at:
        folder = f"{options.save}/checkpoint"
        if options.asynchronous:
            saving = dcp.async_save(state(step + 1), storage_writer=dcp.FileSystemWriter(folder))
        else:
            dcp.save(state(step + 1), checkpoint_id=folder)
