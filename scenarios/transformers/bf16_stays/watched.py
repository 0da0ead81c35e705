"""A Trainer over a linear map that notes the precision of its forward passes.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from harness.bugs import api
from scenarios.common.hf_trainer import arguments, logged

FEATURES, BATCH = 16, 4


class Linear(torch.nn.Module):
    """Notes of each pass the precision, and how far its outputs are from those in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(FEATURES, 4)
        self.passes: list[dict[str, Any]] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.linear(x)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            right = self.linear(x)
            off = float((outputs.float() - right).norm() / right.norm())
        self.passes.append({"precision": NAMES.get(outputs.dtype, str(outputs.dtype)), "off": off})
        return {"loss": (outputs.float() - labels).square().mean(), "logits": outputs}


NAMES = {torch.float32: "no", torch.bfloat16: "bf16"}


def train(ctx: api.Context, kind: str, **precision: bool) -> None:
    """Train with the settings of a precision, or with none, and record each step."""
    torch.manual_seed(ctx.seed)
    inputs = torch.randn(BATCH, FEATURES)
    trainer = Trainer(
        model=Linear().to(ctx.device),
        args=arguments(
            ctx,
            ctx.folder / kind,
            per_device_train_batch_size=BATCH,
            max_steps=ctx.params.steps,
            learning_rate=0.1,
            **precision,
        ),
        train_dataset=[{"x": row, "labels": torch.zeros(4)} for row in inputs],
    )
    with ctx.phase(kind):
        trainer.train()
    passes = trainer.model.passes
    for step, (facts, loss) in enumerate(zip(passes, logged(trainer), strict=True), 1):
        ctx.record(kind, step, **facts, loss=loss)
