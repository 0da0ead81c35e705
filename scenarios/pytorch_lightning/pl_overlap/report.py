"""Shuffle on two ranks whose random generators differ: do the ranks together see each row?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

import os
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer, __version__
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), list[int]()

    def training_step(self, rows: Any, _: int) -> Any:
        self.seen += self.all_gather(rows).int().flatten().tolist()
        return (self.weight * rows).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


options: Any = {"accelerator": "cpu", "devices": 2, "max_epochs": 1, "logger": False}
options |= {"enable_checkpointing": False, "enable_progress_bar": False}
trainer = Trainer(strategy=DDPStrategy(process_group_backend="gloo"), **options)
torch.manual_seed(7 + int(os.environ.get("LOCAL_RANK", 0)))
model = Model()
data: Any = torch.arange(24.0)
trainer.fit(model, DataLoader(data, shuffle=True))  # starts this script again as rank 1
different = len(set(model.seen))
model.print(f"{__version__}: {len(model.seen)} rows were drawn, {different} of 24 came")
has_bug = different < 24
model.print("WRONG: the ranks share some rows" if has_bug else "right: each row came")
raise SystemExit(3 if has_bug and trainer.is_global_zero else 0)
