"""Draw three epochs of batches from NoDuplicatesBatchSampler: does the order of the rows change?

Needs torch and sentence-transformers, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from sentence_transformers import __version__
from sentence_transformers.sampler import NoDuplicatesBatchSampler


class Pairs(list[dict[str, str]]):
    column_names = ("question", "answer")


data: Any = Pairs({"question": f"question {n}", "answer": f"answer {n}"} for n in range(64))
print(__version__)
orders = []
for seed in (1, 2):
    generator = torch.Generator().manual_seed(seed)
    sampler = NoDuplicatesBatchSampler(data, 8, drop_last=False, generator=generator, seed=seed)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append([row for batch in sampler for row in batch])
        print(f"seed {seed}, epoch {epoch}: rows", *orders[-1][:8], "...")
has_bug = any(order == sorted(order) for order in orders)
print("WRONG: the rows are not shuffled" if has_bug else "right: each epoch has another order")
raise SystemExit(3 if has_bug else 0)
