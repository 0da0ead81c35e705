"""If on_train_batch_start ends an epoch, Lightning does not step the schedule: the rate stays.

The hook may return -1, which leaves out the rest of an epoch. Trainings use it where ranks have
unequal numbers of batches, so that none waits for another, and to end an epoch early. A schedule
that steps after each epoch never does then: the training goes on at the first rate to its end. No
message appears; the loss ends higher than it should.

Root cause: the training loop steps such schedules behind its batches. For -1 it raises
StopIteration, which ends the epoch before that place. The fix steps them in this case, too.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

DECAY = 0.5
"""By which the schedule multiplies the rate after each epoch."""


def plan(at: api.Position) -> api.Plan:
    """The rate of each epoch: how far a step moved a weight whose gradient is 1."""
    return {"epoch": api.Kind({"rate": api.alike(api.SIZE)}, api.each(at.params.epochs))}


def run(ctx: api.Context) -> None:
    """Fit some epochs, each of which the hook ends; record their rates."""
    import torch
    from pytorch_lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    p = ctx.params

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=p.lr)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)]

        def on_train_batch_start(self, batch: Any, number: int) -> int | None:
            return -1 if number == p.batches else None

        def training_step(self, rows: Any, _: int) -> Any:
            return (self.weight * rows).mean()

        def on_train_batch_end(self, *_: Any) -> None:
            self.after = self.weight.item()

        def on_train_epoch_start(self) -> None:
            self.before = self.weight.item()

        def on_train_epoch_end(self) -> None:
            rate = (self.before - self.after) / p.batches
            ctx.record("epoch", self.current_epoch + 1, rate=rate)

    batches = p.batches + (p.end == "hook")
    Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=1,
        max_epochs=p.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(ctx.folder),
    ).fit(Module(), DataLoader(torch.ones(batches), batch_size=1))  # type: ignore[arg-type]


def detect(records: api.Records) -> api.Finding | None:
    """Each epoch has the first one's rate, though the schedule halves it after an epoch."""
    rates, lr = {one["step"]: one["rate"] for one in records.of("epoch")}, records.params.lr
    expected = {epoch: lr * DECAY ** (epoch - 1) for epoch in rates}
    faults = [e for e, rate in rates.items() if not api.near(rate, expected[e], share=1e-4)]
    if not faults:
        return None
    return api.Finding(
        f"the rate of epoch {faults[0]} is {rates[faults[0]]:.4g}, not {expected[faults[0]]:.4g}",
        step=faults[0],
        magnitude=max(rates[epoch] / expected[epoch] for epoch in faults),
        unit="times the rate of the schedule",
        clock="epoch",
        documented=all(api.near(rate, lr, share=1e-4) for rate in rates.values()),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The hook ended an epoch before another one."""
    epochs, end = len(records.of("epoch")), records.params.end
    return api.Exercise.of(end == "hook" and epochs > 1, f"{epochs} epochs, ended by the {end}")


picture = api.lines(
    "The learning rate of each epoch",
    "with the bug, the rate of the first epoch stays",
    lambda record: record["rate"],
    "epoch",
    y="learning rate",
    stairs=True,
)
