"""A byte-level GPT that computes QK^T in the way that overflows, and lets one watch it.

Pre-norm blocks with GELU, learned positions, a tied head. The attention multiplies queries and keys
in the model's own precision, and scales by 1/sqrt(head dim) only afterwards, as many hand-written
attentions do. So that precision must hold the unscaled product. Fused kernels keep it in fp32 and
would not show this.

Shapes: tokens int64 [batch, sequence + 1], activations [batch, sequence, width]. Imports torch and
upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.bugs import api
from harness.detectors.headroom import Headroom
from scenarios.deepspeed import _corpus as corpus
from scenarios.deepspeed import _first_steps as begun
from scenarios.deepspeed import _scaler_records as scaler

Observe = Callable[[str, Tensor], None]
"""Gets the name and the value of each tensor that enters a softmax, before any mask."""


@dataclass(frozen=True)
class Shape:
    """The size of the model; ``init`` is the standard deviation of the initial weights."""

    width: int = 128
    blocks: int = 2
    heads: int = 1
    vocabulary: int = 256
    sequence: int = 64
    init: float = 0.02


def engine(ctx: api.Context, lr: float, config: Mapping[str, Any], observe: Observe) -> Any:
    """DeepSpeed's own engine over the model, with torch's AdamW."""
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    torch.manual_seed(ctx.seed)
    model = ByteGPT(Shape(), observe)
    gpt_engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer(model.parameters(), lr),
        config={**_accumulation(config), **config},
    )
    return gpt_engine


def optimizer(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Torch's AdamW."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=1e-2)


def _accumulation(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dtype in which bf16 at stage 0 accumulates: old releases refuse bf16, new ones fp32."""
    from deepspeed.runtime import constants

    if "bf16" not in config or config["zero_optimization"]["stage"]:
        return {}
    takes_bf16 = hasattr(constants, "DDP_BFLOAT16")
    return {} if takes_bf16 else {"data_types": {"grad_accum_dtype": "fp32"}}


class Training:
    """The engine, the watch over its steps, and its batches."""

    def __init__(self, ctx: api.Context, config: Mapping[str, Any]) -> None:
        p, headroom = ctx.params, Headroom(warn_below=ctx.params.warn_below)
        self.engine = engine(ctx, p.lr, config, headroom.observe)
        text = corpus.standard_library()
        first_steps = begun.Watch(self.engine, partial(optimizer, lr=p.lr), p.gradient_clipping)
        self.watch = scaler.Watch(ctx, self.engine, headroom, first_steps, text.facts)
        self._batches = text.batches(ctx, p.sequences, Shape().sequence + 1)

    def begin(self, step: int) -> Tensor:
        """Start a step; returns its batch."""
        batch: Tensor = next(self._batches)
        self.watch.begin(step, batch)
        return batch


class ByteGPT(nn.Module):
    """The complete model; ``forward`` returns the mean cross entropy of the next byte, in nats."""

    def __init__(self, shape: Shape, observe: Observe) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape, f"layer {number} scores", observe) for number in range(shape.blocks)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.observe = observe
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=shape.init)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, text: Tensor) -> Tensor:
        tokens, labels = text[:, :-1], text[:, 1:]
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = linear(self.norm(x), self.tokens.weight)
        self.observe("output logits", logits)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class Linear(nn.Linear):
    """A linear layer that is fast enough on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` of x [..., in] and weight [out, in], with sums in fp32 and a rounded result."""
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    bias = None if bias is None else bias.float()
    return F.linear(x.float(), weight.float(), bias).to(x.dtype)


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and around a residual."""

    def __init__(self, shape: Shape, name: str, observe: Observe) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape, name, observe)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.inner = Linear(shape.width, 4 * shape.width)
        self.outer = Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.outer(F.gelu(self.inner(self.mlp_norm(x))))


class Attention(nn.Module):
    """Causal self-attention, written out; ``observe`` gets QK^T right after the matmul."""

    def __init__(self, shape: Shape, name: str, observe: Observe) -> None:
        super().__init__()
        self.heads, self.name, self.observe = shape.heads, name, observe
        self.query_key_value = Linear(shape.width, 3 * shape.width)
        self.dense = Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        size, sequence, width = x.shape
        mixed = self.query_key_value(x).view(size, sequence, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1)
        self.observe(self.name, scores)
        scores = scores * (width // self.heads) ** -0.5
        future = torch.ones(sequence, sequence, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
        context = scores.softmax(-1) @ value
        out: Tensor = self.dense(context.transpose(1, 2).reshape(size, sequence, width))
        return out
