"""Lightning's Trainer with EMAWeightAveraging over a weight that each step changes.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.utils.data import DataLoader

from harness.bugs import api


class Weight(LightningModule):  # type: ignore[misc]
    """A weight that begins at 0, and to which each step adds its row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.after: list[float] = []
        self.validated: list[float] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, row: Any, _: int) -> Any:
        return -(self.weight * row).sum()

    def on_train_batch_end(self, *_: Any) -> None:
        self.after.append(self.weight.item())

    def validation_step(self, *_: Any) -> None:
        self.validated.append(self.weight.item())


def fit(ctx: api.Context, every: int) -> dict[str, Any]:
    """Train, validate after ``every`` steps, and save after the last one; the weights."""
    p, model = ctx.params, Weight()
    begin = model.weight.item()
    saving = ModelCheckpoint(ctx.folder, "saved", every_n_train_steps=p.steps, save_top_k=1)
    average = EMAWeightAveraging(decay=p.decay, update_starting_at_step=p.start)
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=1,
        callbacks=[average, saving],
        max_epochs=1,
        val_check_interval=every,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(ctx.folder),
    )
    rows: Any = torch.arange(1.0, p.steps + 1)
    trainer.fit(model, DataLoader(rows), DataLoader(torch.ones(1)))  # type: ignore[arg-type]
    file = torch.load(Path(ctx.folder) / "saved.ckpt", weights_only=False)
    return {
        "begin": begin,
        "after": model.after,
        "validated": model.validated,
        "file": file["state_dict"]["weight"].item(),
        "left": model.weight.item(),
    }
