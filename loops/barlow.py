"""The loss of Barlow Twins of the rows of all ranks, under DDP, as lightly teaches it. The
micro-batches of a step cannot be compared."""

import argparse

import torch
import torch.distributed as dist
from lightly.loss import BarlowTwinsLoss
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
options = parser.parse_args()

FEATURES = 3
dist.init_process_group("gloo")
torch.manual_seed(0)


def balanced(count):
    """Rows of which each rank has six with the mean 0 and the covariance of all, as the loss of
    Barlow Twins normalises the rows of a rank."""
    parts = [torch.linalg.qr(torch.randn(FEATURES, FEATURES))[0] for _ in range(count // 6)]
    six = torch.stack([torch.cat([part, -part]) for part in parts])
    return six.unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 2)


views = torch.stack([balanced(144) for _ in range(2)], 1)  # [row, view, feature]
data = list(views)
model = DDP(nn.Linear(FEATURES, 4, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
barlow = BarlowTwinsLoss(gather_distributed=True)
sampler = DistributedSampler(data, shuffle=False)
for x in DataLoader(data, options.batch_size, sampler=sampler):
    barlow(*model(x).unbind(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
