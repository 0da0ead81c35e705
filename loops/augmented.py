"""Images that the workers of a loader augment with albumentations, under DDP. The augmentations
draw random numbers, but change nothing: otherwise no two layouts could be compared."""

import argparse

import albumentations
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--workers", type=int, default=2)
options = parser.parse_args()

SIDE = 4
dist.init_process_group("gloo")
torch.manual_seed(options.seed)
np.random.seed(options.seed)


class Images(Dataset):
    """Images of one channel, whose brightness is changed by 0."""

    def __init__(self):
        self.images = np.random.default_rng(0).random((144, SIDE, SIDE, 1), np.float32)
        brighten = albumentations.RandomBrightnessContrast(
            brightness_limit=(0, 0), contrast_limit=(0, 0), p=1
        )
        self.transform = albumentations.Compose([brighten])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return torch.from_numpy(self.transform(image=self.images[row])["image"])


images = Images()
model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(images, shuffle=False)
for x in DataLoader(images, options.batch_size, sampler=sampler, num_workers=options.workers):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
