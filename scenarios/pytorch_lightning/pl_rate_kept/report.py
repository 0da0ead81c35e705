"""End each epoch with -1 from on_train_batch_start: does the schedule still step after it?

Needs torch and pytorch_lightning, and no GPU. The exit code is 3 if the bug is there."""

import pytorch_lightning as pl
import torch

RATES: list[float] = []


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    def on_train_batch_start(self, batch: object, number: int) -> int | None:
        return -1 if number == 2 else None

    def training_step(self, rows: torch.Tensor, number: int) -> torch.Tensor:
        if number == 0:
            RATES.append(self.optimizers().param_groups[0]["lr"])
        return (self.weight * rows).mean()


off = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(accelerator="cpu", max_epochs=3, enable_checkpointing=False, **off)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(4)))
print(f"pytorch_lightning {pl.__version__}: the rates of the epochs are {RATES}")
print("WRONG: the rate stays" if RATES[1] == 1 else "right: the rate is halved after an epoch")
raise SystemExit(3 if RATES[1] == 1 else 0)
