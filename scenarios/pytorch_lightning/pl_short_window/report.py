"""Accumulate over 4 of 5 batches with Lightning: how much do the two steps move a weight?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.weights = [0.0]

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return -self.weight * batch.mean()  # each batch has the gradient -1

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def on_train_batch_end(self, *_: Any) -> None:
        self.weights.append(float(self.weight.detach()))


def main() -> list[float]:
    module = Module()
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, logger=False)
    trainer.fit(module, DataLoader([1.0] * 5, batch_size=1))
    return [module.weights[4], module.weights[5] - module.weights[4]]


if __name__ == "__main__":
    full, short = main()
    has_bug = abs(full - short) > 0.01
    print(f"pytorch-lightning {pl.__version__}: the steps move the weight by {full}, {short}")
    print("WRONG: batches are alike, steps are not" if has_bug else "right: both are equal")
    raise SystemExit(3 if has_bug else 0)
