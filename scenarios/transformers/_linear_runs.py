"""The Trainer over numbered rows and a linear map that notes them: whole, stopped and resumed runs.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from harness.bugs import api
from scenarios.common.hf_trainer import arguments


class Linear(torch.nn.Module):
    """Keeps the numbers of the rows that it was given, ``seen``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen += [int(row) for row in x.flatten()]
        outputs = self.linear(x / 10)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


class Watch(TrainerCallback):  # type: ignore[misc]
    """Notes how many rows had come at each step, ``counts``; saves and stops after ``stop``."""

    def __init__(self, model: Linear, stop: int) -> None:
        self.model, self.stop, self.counts = model, stop, [0]

    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        self.counts.append(len(self.model.seen))
        if state.global_step == self.stop:
            control.should_save = control.should_training_stop = True

    @property
    def steps(self) -> list[int]:
        """The rows of each step."""
        return [after - before for before, after in zip(self.counts, self.counts[1:], strict=False)]


def rows(count: int) -> list[dict[str, Tensor]]:
    """A dataset of numbered rows."""
    return [{"x": torch.tensor([float(n)]), "labels": torch.tensor([0.0])} for n in range(count)]


def train(
    ctx: api.Context, name: str, stop: int, count: int, **settings: Any
) -> tuple[Any, Linear, Watch]:
    """Train on ``count`` rows in the run ``whole``, ``save`` or ``resume``; the latter two have a
    folder in common, and the checkpoint of step ``stop``."""
    torch.manual_seed(ctx.seed)
    model = Linear().to(ctx.device)
    watch = Watch(model, stop if name == "save" else 0)
    folder = ctx.folder / ("whole" if name == "whole" else "stopped")
    trainer = Trainer(
        model=model,
        args=arguments(ctx, folder, learning_rate=1e-4, **settings),
        train_dataset=rows(count),
        callbacks=[watch],
    )
    checkpoint = str(folder / f"checkpoint-{stop}") if name == "resume" else None
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, model, watch
