"""A training on context-parallel ranks, beside plain torch on the whole sequences.

The model is a linear layer for each token: attention over several ranks needs Transformer Engine,
and the scale of a gradient does not depend on it. The schedule, the gradient buffers and their
reductions, and the optimizer are upstream's. Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.bugs import api
from scenarios.common import plain_torch
from scenarios.megatron_core import _training as training
from scenarios.megatron_core._context import PART, PART_ALONE, TIMES, returned

HIDDEN = 8


@dataclass(frozen=True)
class Batch:
    """Sequences, or a part of them."""

    inputs: Tensor
    """[length, rows, HIDDEN]"""
    labels: Tensor
    """[length, rows]"""
    counted: Tensor
    """[length, rows]: 1 for tokens whose loss counts, otherwise 0."""

    def parts(self, ranks: int) -> list[Batch]:
        """The parts of the ranks, in order."""
        tensors = (self.inputs, self.labels, self.counted)
        pairs = zip(*(tensor.chunk(ranks) for tensor in tensors), strict=True)
        return [Batch(*part) for part in pairs]

    def loss(self, outputs: Tensor) -> Tensor:
        """The sum of the squared errors of the tokens that count."""
        return ((outputs - self.labels).square() * self.counted).sum()


class Tokens(training.Model):
    """A number for each token."""

    def __init__(self, config: Any, weight: Tensor) -> None:
        super().__init__(config)
        self.weight = torch.nn.Parameter(weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """[length, rows, HIDDEN] -> [length, rows]"""
        return inputs @ self.weight


def train(ctx: api.Context) -> None:
    """Train with SGD; record what each step applied, and the share of each rank's part in it."""
    p, ranks = ctx.params, ctx.world_size
    config = training.copies(
        ctx,
        context=True,
        hidden_size=HIDDEN,
        num_attention_heads=1,
        calculate_per_token_loss=p.per_token,
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    module = Tokens(config, torch.randn(HIDDEN, generator=generator)).to(ctx.device)
    trainer = training.Trainer(module, p.lr)
    forward = _forward(returned(p.loss, ctx.pins["megatron-core"]))
    shape = (PART * ranks, p.rows)
    counted = torch.zeros(shape)
    for rank in range(ranks):
        counted[rank * PART : rank * PART + (p.others if rank else p.first)] = 1
    for step in range(1, p.steps + 1):
        inputs = torch.randn(*shape, HIDDEN, generator=generator)
        labels = torch.randn(shape, generator=generator)
        parts = Batch(*(x.to(ctx.device) for x in (inputs, labels, counted))).parts(ranks)
        total = float(counted.sum())

        def weighed(weights: Mapping[str, Tensor], part: Batch, total: float = total) -> Tensor:
            # The mean of these over the parts is the mean over the tokens that count.
            outputs = part.inputs.double() @ weights["weight"]
            return part.loss(outputs) * ranks / total

        update = plain_torch.Update(weighed, module, *parts)
        trainer.backward(forward, parts[ctx.rank], shape)
        trainer.step()
        ctx.record("step", step, **update.facts(p.lr))


def _forward(kind: str) -> Any:
    """Upstream's schedule gets this function, and from it the loss of a part."""

    def forward(data: Iterator[Batch], model: Any) -> Any:
        part = next(data)

        def loss(outputs: Tensor) -> Any:
            total, tokens = part.loss(outputs), part.counted.sum().int()
            logged = {"loss": total.detach().clone()}
            if kind == PART_ALONE:
                return total, tokens, logged
            group = parallel_state.get_context_parallel_group()
            both = torch.stack([total.detach(), tokens.float()])
            dist.all_reduce(both, group=group)
            whole = total - total.detach() + both[0]  # the gradient is that of this rank's part
            factor = dist.get_world_size(group) if kind == TIMES else 1
            return whole * factor, both[1].int(), logged

        return model(part.inputs), loss

    return forward
