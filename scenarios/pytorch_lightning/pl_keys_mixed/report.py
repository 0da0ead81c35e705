"""Log two metrics with sync_dist=True, in another order on each of 2 ranks: are they right?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import pytorch_lightning as pl
import torch


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def validation_step(self, names: Any, _: int) -> None:
        value = 1.0 if names[0] == "even" else 100.0
        self.log(names[0], value, on_epoch=True, sync_dist=True, batch_size=1)

    def val_dataloader(self) -> Any:
        names: Any = ["even", "odd"] if self.global_rank == 0 else ["odd", "even"]
        return torch.utils.data.DataLoader(names)


def main() -> float:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_fork", use_distributed_sampler=False, **quiet
    )
    return float(trainer.validate(Module(), verbose=False)[0]["even"])


if __name__ == "__main__":
    value = main()
    has_bug = abs(value - 1) > 0.01
    print(f"pytorch-lightning {pl.__version__}: a metric that is 1 on both ranks is {value:.4f}")
    print("WRONG: it was averaged with another one" if has_bug else "right: it is 1")
    raise SystemExit(3 if has_bug else 0)
