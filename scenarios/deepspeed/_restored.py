"""A linear map under DeepSpeed's engine, saved and loaded. Imports torch and DeepSpeed:
import it inside ``run``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from harness.bugs import api
from scenarios.common import linear
from scenarios.common.linear import Rows
from scenarios.deepspeed import _regression as regression

TAG = "saved"
BATCH = 8
"""Rows of a rank's part of a step."""


def engine(ctx: api.Context, lr: float, **config: Any) -> Any:
    """DeepSpeed's engine with Adam; each launch has other initial weights, which a load changes."""
    torch.manual_seed(ctx.seed + len(ctx.launch))
    return regression.engine(
        ctx,
        partial(torch.optim.Adam, lr=lr),
        train_micro_batch_size_per_gpu=BATCH,
        zero_allow_untested_optimizer=True,
        **config,
    )


def rows(ctx: api.Context, count: int) -> list[Rows]:
    """The global batches of all steps, the same in both launches, of one linear map."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    weight = torch.randn(linear.OUTPUTS, linear.FEATURES, generator=generator)
    size = (count, ctx.world_size * BATCH, linear.FEATURES)
    inputs = torch.randn(size, generator=generator)
    return [(part.to(ctx.device), (part @ weight.T).to(ctx.device)) for part in inputs]
