"""Composer's Trainer with a distributed sampler of batches, in epochs of two steps."""

import argparse
import os

os.environ.setdefault("NODE_RANK", "0")  # Composer's launcher sets it

import torch
from composer import ComposerModel, Trainer
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

torch.manual_seed(options.seed)
data = TensorDataset(torch.randn(24, 16), torch.randint(0, 8, (24,)))


class Classifier(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, batch):
        return self.layers(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


class Batches(DistributedSampler):
    """The rows of a DistributedSampler, in batches."""

    batch_size, drop_last = options.batch_size, False

    def __iter__(self):
        rows = list(super().__iter__())
        yield from (rows[n : n + self.batch_size] for n in range(0, len(rows), self.batch_size))

    def __len__(self):
        return super().__len__() // self.batch_size


rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
sampler = Batches(data, num_replicas=world, rank=rank, seed=options.seed)
model = Classifier()
Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_sampler=sampler),
    optimizers=torch.optim.Adam(model.parameters(), lr=1e-3),
    max_duration="4ep",
    device="cpu",
    device_train_microbatch_size=options.batch_size,
    progress_bar=False,
    seed=options.seed,
).fit()
