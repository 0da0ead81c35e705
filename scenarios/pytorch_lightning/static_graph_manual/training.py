"""Lightning's Trainer over a linear map on data-parallel ranks, watched step by step.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from itertools import islice
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader

from harness.bugs import api
from scenarios.common import linear, plain_torch
from scenarios.common.linear import Rows

SAMPLER = next(
    name
    for name in ("use_distributed_sampler", "replace_sampler_ddp")  # the second before 2.0
    if name in inspect.signature(Trainer).parameters
)


class Map(LightningModule):  # type: ignore[misc]
    """The linear map. Compares each of its steps with plain torch's on the rows of all ranks."""

    def __init__(self, ctx: api.Context, batches: list[Rows]) -> None:
        super().__init__()
        self.ctx, self.batches, self.map = ctx, batches, linear.model()
        self.automatic_optimization = not ctx.params.manual

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.map.parameters(), lr=self.ctx.params.lr)

    def training_step(self, rows: Any, number: int) -> Any:
        parts = [part.chunk(self.ctx.world_size) for part in self.batches[number]]
        self.update = plain_torch.Update(
            plain_torch.loss_of(self.map, linear.loss), self.map, *zip(*parts, strict=True)
        )
        loss = linear.loss(self.map(rows[0]), rows[1])
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_batch_end(self, outputs: Any, _: Any, number: int) -> None:
        facts = self.update.facts(self.ctx.params.lr)
        static = bool(self.trainer.strategy.model.static_graph)
        loss = float(outputs["loss"])
        self.ctx.record("step", number + 1, loss=loss, static=static, **facts)


def fit(ctx: api.Context) -> None:
    """Train; each rank gets its part of each global batch."""
    p = ctx.params
    torch.manual_seed(ctx.seed)
    model = Map(ctx, [])
    rows = linear.batches(ctx, model.map, p.batch * ctx.world_size, 2.0, 0.1)
    model.batches = list(islice(rows, p.steps))
    parts: Any = [
        tuple(part.chunk(ctx.world_size)[ctx.rank] for part in rows) for rows in model.batches
    ]
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=ctx.world_size,
        strategy=DDPStrategy(process_group_backend=ctx.lane.backend, static_graph=p.static),
        max_epochs=1,
        logger=False,
        **{SAMPLER: False},
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
    )
    trainer.fit(model, DataLoader(parts, batch_size=None))
