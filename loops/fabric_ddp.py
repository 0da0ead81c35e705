"""A loop of one's own with Lightning's Fabric and DDP over a LightningModule, as its documentation
teaches it. --training-step calls the module's training_step, otherwise the module itself."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from lightning.fabric import Fabric
    from lightning.pytorch import LightningModule
except ImportError:  # the same packages under other names
    from lightning_fabric import Fabric
    from pytorch_lightning import LightningModule

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--training-step", action="store_true")
options = parser.parse_args()


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


fabric = Fabric(accelerator="auto", strategy="ddp", devices=options.devices)
fabric.launch()
fabric.seed_everything(options.seed)
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(144, 16, generator=generator)
data = TensorDataset(inputs, torch.randint(0, 8, (144,), generator=generator))
module = Classifier()
model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(DataLoader(data, options.batch_size, shuffle=True))
for number, batch in enumerate(loader):
    is_last = (number + 1) % options.accum == 0
    with fabric.no_backward_sync(model, enabled=not is_last):
        if options.training_step:
            loss = model.training_step(batch, number)
        else:
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        fabric.backward(loss / options.accum)
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
