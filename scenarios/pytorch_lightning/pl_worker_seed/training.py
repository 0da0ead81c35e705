"""Lightning's Trainer over rows that are random numbers, drawn where the loader makes them.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset

from harness.bugs import api


class Drawn(Dataset[Any]):
    """Each row has a number of torch's generator, one of Python's and one of numpy's."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, _: int) -> Any:
        drawn = [float(torch.rand(())), random.random(), float(numpy.random.rand())]
        return torch.tensor(drawn, dtype=torch.float64)


class Noting(LightningModule):  # type: ignore[misc]
    """Records the rows of each epoch as ``kind``."""

    def __init__(self, ctx: api.Context, kind: str) -> None:
        super().__init__()
        self.ctx, self.kind = ctx, kind
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.draws: list[list[float]] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, rows: Any, _: int) -> Any:
        self.draws += rows.tolist()
        return (self.weight * rows).sum()

    def on_train_epoch_end(self) -> None:
        names = ("torch", "python", "numpy")
        facts = {name: [row[n] for row in self.draws] for n, name in enumerate(names)}
        self.ctx.record(self.kind, self.current_epoch + 1, **facts)
        self.draws = []


def fit(ctx: api.Context, kind: str, seed: int) -> None:
    """Train for some epochs after ``seed_everything`` with this seed."""
    p = ctx.params
    seed_everything(seed, workers=True)
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=ctx.world_size,
        strategy=DDPStrategy(process_group_backend=ctx.lane.backend),
        max_epochs=p.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
    )
    trainer.fit(Noting(ctx, kind), DataLoader(Drawn(p.rows), batch_size=2, num_workers=p.workers))
