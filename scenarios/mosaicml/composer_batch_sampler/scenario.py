"""Composer never tells a batch sampler that a new epoch has begun: all epochs have one order.

This affected users who train with a distributed batch sampler, as those that put texts of similar
length into a batch or balance classes are. ``set_epoch`` of such a sampler is never called, so each
epoch has the same batches in the same order. Nothing is lost within an epoch, and the loss falls,
but the training is as if it were never shuffled again. With a sampler of single rows, as in most
tests, all is right.

Root cause: the trainer looked at ``dataloader.sampler`` alone. A loader that has a batch sampler
has torch's sequential sampler there, which has no epochs. Since 0.21.2 the trainer looks at
``batch_sampler`` first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, orders

BATCH = 2
"""Rows of a batch of a rank."""


def one_order(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """All epochs have the shuffled order of the first, and each row once."""
    repeated = [fault for fault in faults if fault.unit is epochs.Unit.REPEATED]
    return len(repeated) == len(faults) == records.params.epochs - 1


oracle = epochs.Epochs(
    one_order,
    orders=(orders.unshuffled,),
    checks=(epochs.row_twice, epochs.another_number, epochs.other_lengths),
    picture=orders.in_order,
)


def run(ctx: api.Context) -> None:
    """Train some epochs, and record the rows that the model sees."""
    os.environ.setdefault("NODE_RANK", "0")  # Composer's launcher sets it
    import torch
    from composer import ComposerModel, Trainer

    p = ctx.params

    class Linear(ComposerModel):  # type: ignore[misc, no-any-unimported, unused-ignore]
        """It keeps the rows of its batches, which are numbers [rows, 1]."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.rows: list[int] = []

        def forward(self, batch: Any) -> Any:
            self.rows += [int(row) for row in batch.flatten()]
            return self.linear(batch)

        def loss(self, outputs: Any, batch: Any, *_: Any, **__: Any) -> Any:
            return outputs.square().mean()

    torch.manual_seed(ctx.seed)
    model = Linear()
    Trainer(
        model=model,
        train_dataloader=_loader(ctx),
        optimizers=torch.optim.Adam(model.parameters(), lr=1e-4),
        max_duration=f"{p.epochs}ep",
        device="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        device_train_microbatch_size=BATCH,
        progress_bar=False,
        seed=ctx.seed,
    ).fit()
    length = p.rows // ctx.world_size
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=model.rows[length * (epoch - 1) : length * epoch])


def _loader(ctx: api.Context) -> Any:
    """A loader with a distributed sampler of batches or of rows."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    data: Any = torch.arange(float(ctx.params.rows)).reshape(-1, 1)
    options: Any = {"num_replicas": ctx.world_size, "rank": ctx.rank, "seed": ctx.seed}
    if ctx.params.sampler == "rows":
        return DataLoader(data, BATCH, sampler=DistributedSampler(data, **options))

    class Batches(DistributedSampler[Any]):
        """The rows of a DistributedSampler, in batches."""

        batch_size, drop_last = BATCH, False

        def __iter__(self) -> Iterator[Any]:
            batches = list(super().__iter__())
            yield from (batches[start : start + BATCH] for start in range(0, len(batches), BATCH))

        def __len__(self) -> int:
            return super().__len__() // BATCH

    return DataLoader(data, batch_sampler=Batches(data, **options))
