"""``linear`` with numbers that bf16 represents exactly. Imports torch: import it inside ``run``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from harness.bugs import api
from scenarios.common.linear import FEATURES, OUTPUTS, Rows, model


def linear_map() -> nn.Linear:
    """A linear map with weights of -1, 0 and 1. With ``batches`` no number in a step is
    rounded in bf16: each is a whole number below 256, divided by a power of 2."""
    exact_map = model()
    with torch.no_grad():
        for part in exact_map.parameters():
            part.copy_(torch.randint(-1, 2, part.shape))
    return exact_map


def batches(ctx: api.Context, rows: int) -> Iterator[Rows]:
    """Endless global batches of small whole numbers, the same on all ranks."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    while True:
        inputs = torch.randint(-1, 2, (rows, FEATURES), generator=generator).float()
        labels = torch.randint(-3, 4, (rows, OUTPUTS), generator=generator).float()
        yield inputs.to(ctx.device), labels.to(ctx.device)
