"""Train three epochs with Composer and a distributed batch sampler: has each another order?

Needs torch and mosaicml, and no GPU. The exit code is 3 if the bug is there."""

from collections.abc import Iterator
from typing import Any

import composer
import torch
from torch.utils.data import DataLoader, DistributedSampler

seen: list[int] = []


class Pairs(DistributedSampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from torch.tensor(list(super().__iter__())).reshape(-1, 2).tolist()


class Model(composer.ComposerModel):  # type: ignore[misc, no-any-unimported, unused-ignore]
    def forward(self, batch: Any) -> Any:
        seen.extend(int(row) for row in batch)
        return self.linear(batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        return outputs.square().mean()


model, rows = Model(), torch.arange(8.0).reshape(-1, 1)
model.linear = torch.nn.Linear(1, 1)
data: Any = rows
loader = DataLoader(data, batch_sampler=Pairs(data, num_replicas=1, rank=0))
options: Any = {"device": "cpu", "progress_bar": False, "device_train_microbatch_size": 2}
composer.Trainer(model=model, train_dataloader=loader, max_duration="3ep", **options).fit()
orders = [seen[start : start + 8] for start in (0, 8, 16)]
print(f"composer {composer.__version__}: the orders of three epochs: {orders}")
is_wrong = orders[0] == orders[1] == orders[2]
print("WRONG: all epochs have one order" if is_wrong else "right: each has its own")
raise SystemExit(3 if is_wrong else 0)
