"""Train 3 epochs of 8 micro-batches with gradient accumulation 4: has each epoch 2 updates?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import accelerate
import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        yield from torch.ones(8, 4)


def updates(dataset: Any) -> list[int]:
    """How many micro-batches of each epoch change the weights."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    plain = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(plain.parameters(), lr=1.0)
    model, optimizer, loader = accelerator.prepare(plain, sgd, DataLoader(dataset))
    counts = [0, 0, 0]
    for epoch in range(3):
        for batch in loader:
            before = plain.weight.detach().clone()
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()
            counts[epoch] += not torch.equal(before, plain.weight)
    return counts


by_kind = {"map-style": updates(torch.ones(8, 4)), "iterable": updates(Stream())}
print(f"accelerate {accelerate.__version__}: updates of each epoch, by kind of dataset: {by_kind}")
has_bug = any(max(counts) > 2 for counts in by_kind.values())
print("WRONG: after the first epoch nothing accumulates" if has_bug else "right: each epoch has 2")
raise SystemExit(3 if has_bug else 0)
