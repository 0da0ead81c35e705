"""Validate within a window of accumulate_grad_batches: does the step have the whole gradient?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import pytorch_lightning
import torch
from torch.utils.data import DataLoader


class Model(pytorch_lightning.LightningModule):  # type: ignore[misc]
    """A weight whose gradient is the row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, row: Any, _: int) -> Any:
        return (self.weight * row).sum()

    def validation_step(self, row: Any, _: int) -> None: ...

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


rows: Any = DataLoader(torch.tensor([1.0, 2.0, 3.0, 4.0]))  # type: ignore[arg-type]
options: Any = {"accelerator": "cpu", "max_epochs": 1, "logger": False, "num_sanity_val_steps": 0}
options |= {"accumulate_grad_batches": 4, "enable_checkpointing": False}
print("pytorch-lightning", pytorch_lightning.__version__)
for interval in (4, 2):
    model = Model()
    pytorch_lightning.Trainer(val_check_interval=interval, **options).fit(model, rows, rows)
    gradient = -model.weight.item()
    print(f"val_check_interval={interval}: the gradient is {gradient:g}, right: 2.5")
print("WRONG: a part of it is lost" if gradient != 2.5 else "right: it is the whole gradient")
raise SystemExit(3 if gradient != 2.5 else 0)
