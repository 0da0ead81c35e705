"""Accumulate over 4 micro-batches, with a training_step without batch_idx: is the gradient whole?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import pytorch_lightning
import torch
from torch.utils.data import DataLoader


class With(pytorch_lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, row: Any, batch_idx: int) -> Any:
        return (self.weight * row).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Without(With):
    def training_step(self, row: Any) -> Any:  # type: ignore[override]
        return (self.weight * row).sum()


rows: Any = DataLoader(torch.tensor([1.0, 2.0, 3.0, 4.0]))  # type: ignore[arg-type]
options: Any = {"accelerator": "cpu", "max_epochs": 1, "logger": False}
options |= {"accumulate_grad_batches": 4, "enable_checkpointing": False}
print("pytorch-lightning", pytorch_lightning.__version__)
for kind in (With, Without):
    model = kind()
    pytorch_lightning.Trainer(**options).fit(model, rows)
    gradient = -model.weight.item()
    print(f"{kind.__name__} batch_idx: the gradient is {gradient:g}, right: 2.5")
print("WRONG: micro-batches are lost" if gradient != 2.5 else "right: it has all micro-batches")
raise SystemExit(3 if gradient != 2.5 else 0)
