"""A small model that predicts words, with parts that a training may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from tests.guard.options import Has

WORDS, LENGTH, WIDTH, ROWS = 32, 8, 32, 4

DEPTH = 32

MICRO_BATCHES = 4

FAULT_STEP = 12
"""The step before whose update a fault happens that happens once."""


class Block(nn.Module):
    def __init__(self, has: Has) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1 if has("dropout") else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Attention(nn.Module):
    """Looks at earlier words only: the scores of the later ones are infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = Mask()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mask(x @ x.transpose(1, 2)).softmax(-1) @ x


class Mask(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf)


class Strange(nn.Module):
    """From step 12 on, its output on rank 1, or its gradient, is not finite."""

    def __init__(self, has: Has) -> None:
        super().__init__()
        self.has, self.calls = has, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls < FAULT_STEP or dist.get_rank() != 1:
            return x
        if self.has("nan_forward"):
            return x * (x[..., :1] - torch.inf).log()
        return x + (x - x).square().sum(-1, keepdim=True).sqrt()


class Model(nn.Module):
    """Predicts the next word of each word."""

    def __init__(self, has: Has) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(has) for _ in range(DEPTH if has("deep") else 2))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        if has("tied"):
            self.out.weight = self.words.weight
        self.idle = nn.Linear(WIDTH, WIDTH) if has("unused") else None
        self.normalise = nn.BatchNorm1d(WIDTH) if has("batch_norm") else None
        self.attention = Attention() if has("masks") else None
        self.strange = Strange(has) if has("nan_forward", "nan_backward") else None
        self.skips, self.checkpoints = has("skips_block"), has("checkpoints")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x)
        for number, block in enumerate(self.blocks):
            if self.skips and number and int(x[0, 0]) % 2:
                continue
            if self.checkpoints:
                from torch.utils.checkpoint import checkpoint

                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        if self.normalise is not None:
            hidden = self.normalise(hidden.transpose(1, 2)).transpose(1, 2)
        if self.attention is not None:
            hidden = self.attention(hidden)
        if self.strange is not None:
            hidden = self.strange(hidden)
        return self.out(hidden)
