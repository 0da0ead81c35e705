"""Call model.training_step() in a loop with Fabric and DDP: are gradients averaged?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import pytorch_lightning
import torch
from lightning_fabric import Fabric


class Model(pytorch_lightning.LightningModule):  # type: ignore[misc]
    """A weight whose gradient is the row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, row: Any) -> Any:
        return (self.weight * row).sum()

    def training_step(self, row: Any) -> Any:
        return self(row)


fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()  # starts this script again as rank 1
row = torch.tensor([1.0 + 2 * fabric.global_rank])
fabric.print("pytorch-lightning", pytorch_lightning.__version__)
for step in ("forward", "training_step"):
    plain = Model()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=1.0))
    fabric.backward(model(row) if step == "forward" else model.training_step(row))
    pair = fabric.all_gather(plain.weight.grad).flatten().tolist()
    fabric.print(f"{step}: the ranks have the gradients {pair[0]:g} and {pair[1]:g}, right: 2")
fabric.barrier()
has_bug = pair != [2, 2]
fabric.print("WRONG: they are not averaged" if has_bug else "right: each rank has the mean")
raise SystemExit(3 if has_bug and fabric.is_global_zero else 0)
