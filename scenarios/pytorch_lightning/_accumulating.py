"""Lightning's Trainer over a linear map: it accumulates gradients, and each step is recorded.

Imports torch and pytorch_lightning: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader, IterableDataset

from harness.bugs import api
from scenarios.common import linear, plain_torch
from scenarios.common.linear import Rows


class Own(IterableDataset[Rows]):
    """This rank's part of each global batch. Lightning gives no sampler to a stream."""

    def __init__(self, ctx: api.Context, batches: list[Rows]) -> None:
        self.ctx, self.batches = ctx, batches

    def __iter__(self) -> Iterator[Rows]:
        ranks, rank = self.ctx.world_size, self.ctx.rank
        for inputs, labels in self.batches:
            yield inputs.chunk(ranks)[rank], labels.chunk(ranks)[rank]


class Map(LightningModule):  # type: ignore[misc]
    """The linear map. Compares each step of the optimizer with plain torch's on all ranks' rows."""

    def __init__(self, ctx: api.Context) -> None:
        super().__init__()
        self.ctx, self.map = ctx, linear.model()
        self.batches: list[Rows] = []
        self.losses: list[float] = []
        """Of the micro-batches since the optimizer's last step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.map.parameters(), lr=self.ctx.params.lr)

    def training_step(self, rows: Any, number: int) -> Any:
        return self.trained(rows, number)

    def trained(self, rows: Rows, number: int) -> Any:
        """The loss of a micro-batch, which has this number in the epoch."""
        if not self.losses:
            window = self.batches[number : number + self.ctx.params.accumulation]
            self.update = plain_torch.Update(
                plain_torch.loss_of(self.map, linear.loss), self.map, *window
            )
        loss = linear.loss(self.map(rows[0]), rows[1])
        self.losses.append(float(loss.detach()))
        return loss

    def extra_facts(self) -> dict[str, Any]:
        """Further facts for the record of a step."""
        return {}

    def on_train_batch_end(self, _outputs: Any, _: Any, number: int) -> None:
        window = self.ctx.params.accumulation
        if (number + 1) % window and number + 1 < len(self.batches):
            return
        step = number // window + 1
        facts = self.update.facts(self.ctx.params.lr)
        loss = sum(self.losses) / len(self.losses)
        self.ctx.record("step", step, loss=loss, **self.extra_facts(), **facts)
        self.losses = []


def fit(
    ctx: api.Context,
    build: Callable[[api.Context], Map],
    *,
    validated: bool = False,
    left_out: int = 0,
    **options: Any,
) -> None:
    """Train for one epoch; each rank gets its part of each global batch.

    The last window has ``left_out`` micro-batches less than the others.
    """
    p = ctx.params
    torch.manual_seed(ctx.seed)
    model = build(ctx)
    rows = linear.batches(ctx, model.map, p.batch * ctx.world_size, 5.0, 0.1)
    model.batches = list(islice(rows, p.accumulation * p.steps - left_out))
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=ctx.world_size,
        strategy=DDPStrategy(process_group_backend=ctx.lane.backend),
        accumulate_grad_batches=p.accumulation,
        limit_train_batches=len(model.batches),
        num_sanity_val_steps=0,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
        **options,
    )
    held_out = [DataLoader(Own(ctx, [next(rows)]), batch_size=None)] if validated else []
    trainer.fit(model, DataLoader(Own(ctx, model.batches), batch_size=None), *held_out)
