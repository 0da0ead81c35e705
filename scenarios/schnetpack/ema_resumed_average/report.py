"""Save and resume a schnetpack run with an average of the weights: which weights go on?

Needs torch and schnetpack, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any

import torch

torch.utils.data.dataloader.T_co = Any  # type: ignore[attr-defined]  # for schnetpack before 2.2
from pytorch_lightning import LightningModule, Trainer  # noqa: E402
from schnetpack.train import ExponentialMovingAverage  # noqa: E402


class Task(LightningModule):
    def training_step(self, row: torch.Tensor) -> Any:
        return self.model(row).sum()

    def validation_step(self, row: torch.Tensor) -> None: ...

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=1.0)


def train(epochs: int, folder: str, **start: Any) -> float:
    task, average = Task(), ExponentialMovingAverage(decay=0.9)
    task.model, rows = torch.nn.Linear(1, 1), torch.ones(1, 1, 1)
    trainer = Trainer(max_epochs=epochs, callbacks=[average], logger=False, default_root_dir=folder)
    trainer.fit(task, rows, rows, **start)
    return float(average.ema.collected_params[0])  # the weight before the last validation


with TemporaryDirectory() as folder:
    first = train(1, folder)
    weight = train(2, folder, ckpt_path=f"{folder}/checkpoints/epoch=0-step=1.ckpt")
has_bug = abs(weight - (first - 1)) > 1e-3
print(f"schnetpack {version('schnetpack')}: the weight is {first:.4f}, and {weight:.4f} if resumed")
print("WRONG: it went on from the average" if has_bug else "right: a step takes 1 from it")
raise SystemExit(3 if has_bug else 0)
