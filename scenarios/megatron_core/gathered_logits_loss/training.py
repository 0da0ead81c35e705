"""A GPT with gathered logits in a training with SGD, beside torch's loss of the same logits.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.bugs import api
from scenarios.common import features
from scenarios.megatron_core import _gpt as gpt


def train(ctx: api.Context) -> None:
    """Train; record each loss and each gradient, on this rank's part of the weights."""
    p = ctx.params
    model = gpt.model(ctx, {}, parallel_output=p.gathered != "always")
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    mask = gpt.after(gpt.LENGTH, ctx.device)[None, None]
    part = gpt.VOCABULARY // ctx.world_size
    keywords = {"runtime_gather_output": True} if p.gathered == "in this call" else {}
    tokens, labels = gpt.text(ctx, p.rows)
    where = torch.arange(gpt.LENGTH, device=ctx.device).expand_as(tokens)

    def logits() -> Tensor:
        output: Any = model(tokens, where, mask, runtime_gather_output=True)
        return output.flatten(0, 1)  # type: ignore[no-any-return]

    for step in range(1, p.steps + 1):
        right_loss = cross_entropy(logits(), labels.flatten())
        expected = features.of_losses(model, [right_loss])
        faulty = counted_again(logits(), labels.flatten(), part)
        documented = features.of_losses(model, [faulty])
        optimizer.zero_grad()
        loss = model(tokens, where, mask, labels=labels, **keywords).mean()
        loss.backward()
        actual = features.gradients(model)
        features.record(
            ctx, step, loss, actual, expected, documented, right_loss=float(right_loss.detach())
        )
        optimizer.step()


def counted_again(logits: Tensor, labels: Tensor, part: int) -> Tensor:
    """A number with the gradient of the documented bug; its value has no meaning.

    Each rank has the part of the gradient of its own classes. Its softmax is divided by the number
    of ranks, and only the first rank finds its labels, those below ``part``.
    """
    ranks = logits.shape[-1] // part
    of_labels = logits.gather(-1, labels[:, None])[:, 0] * (labels < part)
    return (logits.logsumexp(-1) / ranks - of_labels).mean()
