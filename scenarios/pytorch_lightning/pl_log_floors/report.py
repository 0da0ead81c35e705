"""Log the mean of 5 rows on 2 ranks with sync_dist=True: is it their mean?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.log("mean", batch.mean(), on_epoch=True, sync_dist=True, batch_size=len(batch))

    def val_dataloader(self) -> Any:
        rows = torch.ones(3 if self.global_rank == 0 else 2)  # unlike numbers of rows
        return DataLoader([*rows], batch_size=3)


def main() -> float:
    torch.manual_seed(0)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_fork", use_distributed_sampler=False, **quiet
    )
    return float(trainer.validate(Module(), verbose=False)[0]["mean"])


if __name__ == "__main__":
    mean = main()
    has_bug = abs(mean - 1) > 0.01
    print(f"pytorch-lightning {pl.__version__}: the logged mean of 5 rows of 1 is {mean:.4f}")
    print("WRONG: it is not 1" if has_bug else "right: it is 1")
    raise SystemExit(3 if has_bug else 0)
