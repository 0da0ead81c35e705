"""Fit with EMAWeightAveraging that would start after 100 steps: which weight remains after 5 steps?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader


class Weight(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.trained: list[float] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, row: Any, _: int) -> Any:
        return -(self.weight * row).sum()

    def on_train_batch_end(self, *_: Any) -> None:
        self.trained.append(self.weight.item())


rows: Any = torch.ones(5)
model = Weight()
options: Any = {"callbacks": [EMAWeightAveraging(decay=0.9, update_starting_at_step=100)]}
options |= {"default_root_dir": tempfile.mkdtemp(), "enable_progress_bar": False}
pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, **options).fit(model, DataLoader(rows))
left = model.weight.item()
print(f"pytorch-lightning {pl.__version__}: the weight after each step: {model.trained}")
print(f"after fit: {left:g}")
print("WRONG: the trained weight is lost" if left == 0 else "right: the trained weight")
raise SystemExit(3 if left == 0 else 0)
