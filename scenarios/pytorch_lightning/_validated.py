"""Lightning's Trainer, which only validates.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy

from harness.bugs import api


class Module(LightningModule):  # type: ignore[misc]
    """A module with a weight, as DDP needs one; nothing trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)


def metric(ctx: api.Context, module: LightningModule, loader: Any, name: str) -> float:
    """Validate on this rank's loader; returns what Lightning has as this metric."""
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=ctx.world_size,
        strategy=DDPStrategy(process_group_backend=ctx.lane.backend),
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
    )
    trainer.validate(module, loader, verbose=False)
    return float(trainer.callback_metrics[name])
