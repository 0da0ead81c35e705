"""The Trainer over rows of one length, so the mean of the micro-batches' means is the batch's mean.

Each step also records which rows the model was given. Imports torch and transformers: import it
inside ``run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.bugs import api
from scenarios.common import plain_torch
from scenarios.common.hf_trainer import VOCABULARY, llama
from scenarios.transformers._trainer_sgd import IGNORED, Loss, Rows, sgd

LENGTH = 16
ROWS = 8
"""Rows of a step."""


class Plain(nn.Module):
    """A module of one's own: its loss is a mean, and it takes no keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids))
        loss = Loss()
        return {"loss": loss.total(logits, labels) / loss.count(labels), "logits": logits}


MODELS = {"llama": llama, "plain": Plain}


def dataset(count: int, seed: int) -> list[Rows]:
    """Rows of random tokens, [length] each.

    The first label predicts nothing. It is masked, because some releases count it as an item.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def trainer(ctx: api.Context) -> Any:
    """A Trainer whose steps record the rows, their tokens and their losses."""
    params = ctx.params
    rows = dataset(ROWS * params.steps, ctx.seed)
    numbers = {_name(row["input_ids"], row["labels"]): number for number, row in enumerate(rows)}

    def facts(batches: Sequence[Rows], plain: plain_torch.Plain, distance: float) -> dict[str, Any]:
        pairs = [
            pair
            for batch in batches
            for pair in zip(batch["input_ids"], batch["labels"], strict=True)
        ]
        return {
            "tokens": [Loss().count(batch["labels"]) for batch in batches],
            "losses": plain.losses,
            "rows": [numbers.get(_name(*pair), -1) for pair in pairs],
            "aside": distance,
        }

    size = ROWS // params.accumulation
    return sgd(ctx, MODELS[params.model](), Loss(), rows, size=size, more=facts)


def _name(tokens: Tensor, labels: Tensor) -> tuple[int, ...]:
    """A key that distinguishes a row from all others."""
    return (*tokens.tolist(), *labels.tolist())
