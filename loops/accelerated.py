"""A loop with accelerate, as its documentation teaches gradient accumulation and checkpoints."""

import argparse
from itertools import chain

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--rows", type=int, default=144, help="of an epoch")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--iterable", action="store_true", help="an IterableDataset, unshuffled")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
parser.add_argument("--device-specific", action="store_true", help="a seed for each rank")
parser.add_argument("--default-sampler", action="store_true", help="not the seedable one")
parser.add_argument("--schedule-inside", action="store_true", help="stepped in accumulate()")
parser.add_argument("--sync-each-batch", action="store_true", help="gradients are always reduced")
options = parser.parse_args()

seedable = not (options.device_specific or options.default_sampler)
try:
    from accelerate.utils import DataLoaderConfiguration

    keywords = {"dataloader_config": DataLoaderConfiguration(use_seedable_sampler=seedable)}
except ImportError:  # an old release
    keywords = {}
if not options.schedule_inside:  # otherwise accelerate steps the schedule once for each rank
    keywords["step_scheduler_with_optimizer"] = False
if options.sync_each_batch:
    from accelerate.utils import GradientAccumulationPlugin  # not in old releases

    plugin = GradientAccumulationPlugin(num_steps=options.accum, sync_each_batch=True)
    keywords["gradient_accumulation_plugin"] = plugin
else:
    keywords["gradient_accumulation_steps"] = options.accum


class Schedule(lr_scheduler.LinearLR, lr_scheduler._LRScheduler):
    """A schedule that every release accepts: some know only the base class of torch 1."""


accelerator = Accelerator(
    cpu=not torch.cuda.is_available(), mixed_precision="bf16" if options.bf16 else "no", **keywords
)
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(options.rows, 16, generator=generator)
data = TensorDataset(inputs, torch.randint(0, 8, (options.rows,), generator=generator))


class Stream(IterableDataset):
    """The same rows, one after another."""

    def __iter__(self):
        yield from data


set_seed(options.seed, device_specific=options.device_specific)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(options.dropout), nn.Linear(32, 8))
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = Schedule(optimizer, total_iters=100)
if options.iterable:
    loader = DataLoader(Stream(), options.batch_size)
else:
    loader = DataLoader(data, options.batch_size, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

steps = 0
if options.resume:
    accelerator.load_state(options.resume)
    steps = options.save_at or 2
    loader = accelerator.skip_first_batches(loader, steps * options.accum)
for x, y in chain.from_iterable(loader for _ in range(options.epochs)):
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        if options.schedule_inside:
            schedule.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        if not options.schedule_inside:
            schedule.step()
        steps += 1
        if options.save and steps == options.save_at:
            accelerator.save_state(options.save)
