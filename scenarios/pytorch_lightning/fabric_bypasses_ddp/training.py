"""A loop with Fabric and DDP over a LightningModule, as Fabric's documentation teaches it.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from harness.bugs import api
from scenarios.common import linear, plain_torch, unreduced
from scenarios.common.linear import Rows


class Map(LightningModule):  # type: ignore[misc]
    """The linear map, with three ways to its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.map = linear.model()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.map(inputs)  # type: ignore[no-any-return]

    def training_step(self, rows: Rows, _: int = 0) -> Tensor:
        return linear.loss(self(rows[0]), rows[1])

    def compute_loss(self, rows: Rows) -> Tensor:
        """The same under a name that Lightning does not know."""
        return linear.loss(self(rows[0]), rows[1])


def fit(ctx: api.Context) -> None:
    """Train with Fabric; each rank gets its part of each global batch."""
    torch.manual_seed(ctx.seed)
    fabric: Any = Fabric(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=ctx.world_size,
        strategy=DDPStrategy(process_group_backend=ctx.lane.backend),
    )
    fabric.launch()
    plain = Map()
    reference = copy.deepcopy(plain.map).to(ctx.device)
    sgd = torch.optim.SGD(plain.parameters(), lr=ctx.params.lr)
    model, optimizer = fabric.setup(plain, sgd)
    ddp = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    ctx.record("wrapped", ddp=ddp)

    def backward(part: Rows) -> Tensor:
        if ctx.params.method == "forward":
            loss = linear.loss(model(part[0]), part[1])
        else:
            loss = getattr(model, ctx.params.method)(part)
        fabric.backward(loss)
        return loss

    unreduced.train_by(ctx, reference, backward, optimizer, partial(plain_torch.copied, plain.map))
