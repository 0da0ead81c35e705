"""Lightning's Trainer saves a checkpoint while it trains; the disk answers only after a later step.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader

from harness.bugs import api

PATIENCE = 20.0
"""Seconds that one thread waits for the other."""


class Slow(TorchCheckpointIO):  # type: ignore[misc]
    """Writes only on request, so that a run does not depend on the speed of a disk."""

    def __init__(self) -> None:
        self.begin, self.done = threading.Event(), threading.Event()

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        self.begin.wait(PATIENCE)
        super().save_checkpoint(*args, **options)
        self.done.set()


class Weight(LightningModule):  # type: ignore[misc]
    """A weight that each step changes, and that is saved after one of them."""

    def __init__(self, ctx: api.Context, disk: Slow) -> None:
        super().__init__()
        self.params, self.disk = ctx.params, disk
        self.path = str(Path(ctx.folder) / "saved.ckpt")
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.after: list[float] = []
        """The weight after each step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, row: Any, _: int) -> Any:
        return -(self.weight * row).sum()

    def on_train_batch_end(self, *_: Any) -> None:
        self.after.append(self.weight.item())
        if len(self.after) == self.params.save:
            self.trainer.save_checkpoint(self.path)
        if len(self.after) == self.params.save + self.params.late and self.params.io == "async":
            self.disk.begin.set()
            self.disk.done.wait(PATIENCE)


def fit(ctx: api.Context) -> tuple[list[float], Any]:
    """Train, save in between; the weight after each step, and the content of the file."""
    disk = Slow()
    if ctx.params.io == "plain":
        disk.begin.set()
    model = Weight(ctx, disk)
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=1,
        plugins=[AsyncCheckpointIO(disk) if ctx.params.io == "async" else disk],
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
    )
    rows: Any = torch.ones(ctx.params.steps)
    trainer.fit(model, DataLoader(rows))
    return model.after, torch.load(model.path, weights_only=False)
