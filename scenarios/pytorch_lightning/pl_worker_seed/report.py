"""Draw from torch in workers, with seed_everything(workers=True): do epochs and seeds differ?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer, __version__, seed_everything
from torch.utils.data import DataLoader


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drawn = torch.nn.Parameter(torch.zeros(1)), list[str]()

    def training_step(self, numbers: Any, _: int) -> Any:
        self.drawn += [f"{number:.4f}" for number in numbers.tolist()]
        return (self.weight * numbers).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


options: Any = {"accelerator": "cpu", "max_epochs": 3, "logger": False}
options |= {"enable_checkpointing": False, "enable_progress_bar": False}
options |= {"enable_model_summary": False}
settings: Any = {"num_workers": 2, "collate_fn": lambda rows: torch.rand(len(rows))}
loader: Any = DataLoader(range(4), **settings)  # type: ignore[arg-type]
epochs = set()
for seed in (1, 2):
    seed_everything(seed, workers=True)
    model = Model()
    Trainer(**options).fit(model, loader)
    for epoch in (model.drawn[:4], model.drawn[4:8], model.drawn[8:]):
        epochs.add(tuple(epoch))
        print(f"{__version__}, seed {seed}:", *epoch)
print("WRONG: epochs repeat" if len(epochs) < 6 else "right: each epoch has its own numbers")
raise SystemExit(3 if len(epochs) < 6 else 0)
