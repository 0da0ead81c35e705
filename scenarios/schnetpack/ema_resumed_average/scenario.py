"""A schnetpack run resumed from a checkpoint goes on from the averaged weights.

This affects users who resume a training with schnetpack's ``ExponentialMovingAverage``, which its
default configuration has. The checkpoint is written after the validation, while the model
has the averaged weights. A resumed run trains on from these instead of the weights that the last
step left, with an optimizer whose state belongs to the others. The training loss jumps after each
interruption. No error is raised.

Root cause: the callback copies the average into the model at the start of a validation, and puts
the raw weights back at the start of the next epoch. The raw weights are in the checkpoint, as a
part of the average's state, but at the start of a resumed fit the callback stores the model's
weights over them. Since the fix it first puts the raw weights into the model, and the sanity check
before the training does not store again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued, line_edits


def raw_weights(function: Any) -> api.Edits:
    """Put the stored weights into the model right after the state of the average was loaded."""
    restore = "if self.ema.collected_params is not None: self.ema.restore()"
    yield from line_edits.followed(line_edits.setting(function, "_to_load"), restore)


def no_second_store(function: Any) -> api.Edits:
    """Leave the weights and the stored ones alone in a sanity check."""
    import libcst as cst

    (store,) = line_edits.calling(function, "store")
    skip = cst.parse_statement("if trainer.sanity_checking: return")
    yield store, cst.FlattenSentinel([skip, store])


def from_average(steps: Sequence[api.Record], whole: Sequence[api.Record], at: api.Records) -> bool:
    """The first step after the resume begins with the average that the checkpoint has."""
    return api.near(steps[0]["weight"], whole[at.params.done]["average"], share=1e-6)


oracle = continued.Continued(
    from_average,
    facts=lambda at: {"weight": api.NUMBER, "average": api.NUMBER},
    fact="weight",
    noun="weight that a step begins with",
)


def run(ctx: api.Context) -> None:
    """Train one weight in epochs of one step, with a validation and a checkpoint after each."""
    import torch
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint
    from schnetpack.train import ExponentialMovingAverage

    p = ctx.params
    average = ExponentialMovingAverage(p.decay)

    class Task(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.zeros_(self.model.weight)

        def training_step(self, row: Any) -> Any:
            ctx.record(
                "step",
                self.global_step + 1,
                weight=self.model.weight.item(),
                average=average.ema.shadow_params[0].item(),
            )
            return (self.model(row) - 1).square().sum()

        def validation_step(self, row: Any) -> None:
            self.log("val_loss", (self.model(row) - 1).square().sum(), batch_size=1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=p.lr)

    rows: Any = torch.utils.data.DataLoader([torch.ones(1, 1)], batch_size=None)  # type: ignore[arg-type]
    trainer = Trainer(
        accelerator="cpu" if ctx.lane is api.Lane.CPU else "gpu",
        devices=1,
        max_epochs=p.done + p.more,
        callbacks=[average, ModelCheckpoint(ctx.folder, "{epoch}", "val_loss", save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=ctx.folder,
    )
    file = ctx.folder / f"epoch={p.done - 1}.ckpt" if ctx.launch == continued.RESUMED else None
    trainer.fit(Task(), rows, rows, ckpt_path=file and str(file))
