"""Train on 96 micro-batches with sync_each_batch and 3 accumulation steps: are there 32 updates?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import accelerate
import torch
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader


def updates(sync_each_batch: bool) -> int:
    """How many of 96 micro-batches change the weights."""
    plugin = GradientAccumulationPlugin(num_steps=3, sync_each_batch=sync_each_batch)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    plain = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(plain.parameters(), lr=1.0)
    model, optimizer, loader = accelerator.prepare(plain, sgd, DataLoader(torch.ones(96, 4)))
    count = 0
    for batch in loader:
        before = plain.weight.detach().clone()
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()
        count += not torch.equal(before, plain.weight)
    return count


counts = {sync_each_batch: updates(sync_each_batch) for sync_each_batch in (False, True)}
print(f"accelerate {accelerate.__version__}: updates, by sync_each_batch: {counts}; right: 32")
has_bug = counts[True] > counts[False]
print("WRONG: each micro-batch is an update" if has_bug else "right: both have 32 updates")
raise SystemExit(3 if has_bug else 0)
