"""Optimize manually with DDPStrategy(static_graph=True): are gradients averaged?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer, __version__
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader


class Model(LightningModule):  # type: ignore[misc]
    """A weight whose gradient is the row: 1 on rank 0, 3 on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.automatic_optimization = False

    def training_step(self, row: Any, _: int) -> None:
        self.manual_backward((self.weight * row).sum())
        self.optimizers().step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


rows: Any = DataLoader(torch.tensor([1.0, 3.0]))  # type: ignore[arg-type]
options: Any = {"accelerator": "cpu", "devices": 2, "max_epochs": 1, "logger": False}
options |= {"enable_checkpointing": False, "enable_progress_bar": False}
for static in (False, True):
    model, ddp = Model(), DDPStrategy(process_group_backend="gloo", static_graph=static)
    trainer = Trainer(strategy=ddp, **options)
    trainer.fit(model, rows)  # the first one starts this script again as rank 1
    updates = model.all_gather(-model.weight.detach()).flatten().tolist()
    model.print(f"{__version__}, static_graph={static}: the ranks apply {updates}, right: 2 and 2")
trainer.strategy.barrier()
model.print("WRONG: they are not averaged" if updates != [2, 2] else "right: they are averaged")
raise SystemExit(3 if updates != [2, 2] and trainer.is_global_zero else 0)
