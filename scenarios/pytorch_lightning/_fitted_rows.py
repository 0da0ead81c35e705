"""Lightning's Trainer over numbered rows: which ones each rank is given, epoch by epoch.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader

from harness.bugs import api


class Seen(LightningModule):  # type: ignore[misc]
    """A module with one weight, which notes the numbers of the rows that it trains on."""

    def __init__(self, ctx: api.Context, parts: int, begin: Callable[[int], None]) -> None:
        super().__init__()
        self.ctx, self.parts, self.begin = ctx, parts, begin
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, rows: Any, _: int) -> Any:
        self.seen += [int(row) for row in rows]
        return (self.weight * rows).mean()

    def on_train_epoch_start(self) -> None:
        self.begin(self.current_epoch)

    def on_train_epoch_end(self) -> None:
        passes, remainder = divmod(self.current_epoch + 1, self.parts)
        if not remainder:
            self.ctx.record("epoch", passes, seen=self.seen)
            self.seen = []


def fit(
    ctx: api.Context,
    loader: DataLoader[Any],
    parts: int = 1,
    begin: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Train on ``loader``, which Lightning shards, and record the rows.

    A record has the rows of ``parts`` of Lightning's epochs. Each starts with ``begin(number)``.
    """
    several = ctx.world_size > 1
    Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=ctx.world_size,
        strategy=DDPStrategy(process_group_backend=ctx.lane.backend) if several else "auto",
        max_epochs=ctx.params.epochs * parts,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
    ).fit(Seen(ctx, parts, begin), loader)
