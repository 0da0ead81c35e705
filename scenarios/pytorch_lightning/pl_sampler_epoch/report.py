"""Train on two ranks with a sampler that gives half of 8 rows in each epoch: do all rows come?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer, __version__
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader


class Half(list[int]):
    def set_epoch(self, epoch: int) -> None:  # even rows in even epochs, odd rows in odd ones
        self[:] = range(epoch % 2, 8, 2)


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), set[int]()

    def training_step(self, rows: Any, _: int) -> Any:
        self.seen |= set(self.all_gather(rows).int().flatten().tolist())
        return (self.weight * rows).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


options: Any = {"accelerator": "cpu", "devices": 2, "max_epochs": 4, "logger": False}
options |= {"enable_checkpointing": False, "enable_progress_bar": False}
trainer, model = Trainer(strategy=DDPStrategy(process_group_backend="gloo"), **options), Model()
loader: Any = DataLoader(range(8), sampler=Half(range(0, 8, 2)))  # type: ignore[arg-type]
trainer.fit(model, loader)  # starts this script again as rank 1
model.print(f"{__version__}: rows of 4 epochs: {sorted(model.seen)}")
has_bug = len(model.seen) < 8
model.print("WRONG: the sampler is always in epoch 0" if has_bug else "right: all 8 rows come")
raise SystemExit(3 if has_bug and trainer.is_global_zero else 0)
