"""A GPT whose layers have a sliding window, on packed documents.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.bugs import api
from scenarios.common import features
from scenarios.megatron_core import _gpt as gpt


def train(ctx: api.Context) -> None:
    """Train on packed rows; record each gradient, beside those of the documents alone and of rows
    that are one document."""
    p = ctx.params
    packed_length = p.documents * gpt.LENGTH
    window = {"window_size": (p.window, 0)} if p.window else {}
    model = gpt.model(ctx, window, length=packed_length, position_embedding_type="rope")
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    row = gpt.after(packed_length, ctx.device)
    document = torch.arange(packed_length, device=ctx.device) // gpt.LENGTH
    others = document[:, None] != document
    alone = gpt.text(ctx, p.documents * p.rows)
    tokens, labels = (ids.reshape(p.rows, packed_length) for ids in alone)
    for step in range(1, p.steps + 1):
        expected = features.of_losses(
            model, [_loss(model, *alone, gpt.after(gpt.LENGTH, ctx.device))]
        )
        documented = features.of_losses(model, [_loss(model, tokens, labels, row)])
        optimizer.zero_grad()
        loss = _loss(model, tokens, labels, row | others)
        loss.backward()
        actual = features.gradients(model)
        features.record(ctx, step, loss, actual, expected, documented)
        optimizer.step()


def _loss(model: Any, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """The mean loss (nats) of a token; ``mask`` is [length, length], True where none attends."""
    where = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    losses: Tensor = model(tokens, where, mask[None, None], labels=labels)
    return losses.mean()
