"""A bigram language model of megatron-core's own tensor-parallel layers, beside plain torch.

The embedding and the output layer are cut along the vocabulary. Imports torch and upstream: import
it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear, log_softmax

from harness.bugs import api
from scenarios.common import plain_torch

VOCABULARY, HIDDEN = 16, 8
LENGTH, ROWS = 6, 2

Weights = Mapping[str, Tensor]
"""The complete ``words`` and ``output``, [VOCABULARY, HIDDEN] each."""


class Bigram(nn.Module):
    """The logits of the next token on this rank's part of the vocabulary, or gathered ones."""

    def __init__(self, config: Any, initial: Weights, *, gathered: bool) -> None:
        super().__init__()
        self.words = tensor_parallel.VocabParallelEmbedding(
            VOCABULARY, HIDDEN, init_method=_set_to(initial["words"]), config=config
        )
        self.output = tensor_parallel.ColumnParallelLinear(
            HIDDEN,
            VOCABULARY,
            config=config,
            init_method=_set_to(initial["output"]),
            bias=False,
            gather_output=gathered,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """[length, rows] -> [length, rows, vocabulary]"""
        logits: Tensor = self.output(self.words(tokens))[0]
        return logits

    def gathered(self) -> dict[str, Tensor]:
        """The complete weights; a collective call."""
        return {"words": _gathered(self.words.weight), "output": _gathered(self.output.weight)}


def _set_to(values: Tensor) -> Callable[[Tensor], Tensor]:
    def set_(weight: Tensor) -> Tensor:
        with torch.no_grad():
            return weight.copy_(values)

    return set_


def _gathered(shard: Tensor) -> Tensor:
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard.detach())
    return torch.cat(parts)


def model(ctx: api.Context, *, gathered: bool) -> Bigram:
    """The model, one part of the vocabulary on each rank, with random weights."""
    dist.init_process_group(ctx.lane.backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ctx.world_size)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=ctx.world_size,
        use_cpu_initialization=True,
        tensor_model_parallel_size=ctx.world_size,
        params_dtype=torch.float32,
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    random = torch.randn(2, VOCABULARY, HIDDEN, generator=generator)
    initial = {"words": random[0], "output": random[1]}
    return Bigram(config, initial, gathered=gathered).to(ctx.device)


def train(ctx: api.Context, smoothing: float, steps: int, lr: float, *, gathered: bool) -> None:
    """Train with SGD; record what each step applied, and what explains it.

    The loss is upstream's, or torch's over gathered logits.
    """
    bigram = model(ctx, gathered=gathered)
    optimizer = torch.optim.SGD(bigram.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    plain = Plain(ctx.world_size, smoothing)
    for step in range(1, steps + 1):
        both = torch.randint(VOCABULARY, (2, LENGTH, ROWS), generator=generator).to(ctx.device)
        before = bigram.gathered()
        optimizer.zero_grad()
        loss = (torchs if gathered else upstreams)(bigram(both[0]), both[1], smoothing)
        loss.backward()
        optimizer.step()
        expected = plain_torch.differentiate(plain.loss, before, [both])
        local = plain_torch.differentiate(plain.local, before, [both])
        after = bigram.gathered()
        facts = plain_torch.facts(expected, before, after, lr)
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            local_loss=float(plain.of_parts(before, both)[ctx.rank]),
            unexplained=plain_torch.facts(local, before, after, lr),
            **facts,
        )


def upstreams(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The mean loss (nats) of a part of the logits, by upstream's cross-entropy."""
    losses: Tensor = vocab_parallel_cross_entropy(logits, labels, smoothing)
    return losses.mean()


def torchs(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """torch's loss of the complete logits, which gives the right class a share, too."""
    share = smoothing * VOCABULARY / (VOCABULARY - 1)
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=share)


class Plain:
    """The smoothed loss in plain torch, over the complete vocabulary or over each rank's part."""

    def __init__(self, parts: int, smoothing: float) -> None:
        self.parts, self.smoothing = parts, smoothing

    def loss(self, weights: Weights, both: Tensor) -> Tensor:
        """The mean loss (nats): all classes but the right one share ``smoothing`` evenly."""
        logs = log_softmax(_logits(weights, both), -1)
        return self._smoothed(logs, logs, both)

    def local(self, weights: Weights, both: Tensor) -> Tensor:
        """A number with the gradient of the documented bug: each rank's part of the logits gets the
        gradient of that rank's own loss. Its value has no meaning."""
        logits = _logits(weights, both)
        fixed = logits.detach().chunk(self.parts, -1)
        parts = logits.chunk(self.parts, -1)
        mixed = [
            torch.cat([*fixed[:rank], parts[rank], *fixed[rank + 1 :]], -1)
            for rank in range(self.parts)
        ]
        return torch.stack([self._of_part(m, both, rank) for rank, m in enumerate(mixed)]).sum()

    def of_parts(self, weights: Weights, both: Tensor) -> list[Tensor]:
        """By rank, the mean loss (nats) that smooths over the rank's part of the vocabulary."""
        logits = _logits(weights, both)
        return [self._of_part(logits, both, rank) for rank in range(self.parts)]

    def _of_part(self, logits: Tensor, both: Tensor, rank: int) -> Tensor:
        logs = log_softmax(logits, -1)
        return self._smoothed(logs, logs.chunk(self.parts, -1)[rank], both)

    def _smoothed(self, logs: Tensor, over: Tensor, both: Tensor) -> Tensor:
        share = self.smoothing * over.shape[-1] / (over.shape[-1] - 1)
        of_labels = logs.gather(-1, both[1][..., None])[..., 0]
        return -((1 - share) * of_labels + share * over.mean(-1)).mean()


def _logits(weights: Weights, both: Tensor) -> Tensor:
    return linear(embedding(both[0], weights["words"]), weights["output"])
