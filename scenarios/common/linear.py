"""A linear map whose gradient and update plain torch computes. Imports torch, but no upstream.

The map starts at a known distance from its optimum, so its gradients fall from large to small. The
loss is half the squared distance, a mean over rows; its Hessian is the inputs' covariance, about 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from harness.bugs import api

FEATURES, OUTPUTS = 16, 4

Rows = tuple[Tensor, Tensor]
"""Inputs [rows, features] and labels [rows, outputs]."""


def model() -> nn.Linear:
    """The linear map, initialised by torch."""
    return nn.Linear(FEATURES, OUTPUTS)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance, a mean over rows."""
    return (outputs - labels).square().sum(dim=-1).mean() / 2


def batches(
    ctx: api.Context, module: nn.Module, rows: int, distance: float, noise: float
) -> Iterator[Rows]:
    """Endless global batches of ``rows``, the same on all ranks, of another linear map.

    Its weights are ``distance`` from the module's; ``noise`` is the deviation of the labels.
    """
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    offset = torch.randn(OUTPUTS, FEATURES, generator=generator)
    # Relative to the weights that are trained: an upstream may have replaced the rank's own.
    start = module.get_parameter("weight").detach().cpu()
    weight = start + distance * offset / offset.norm()
    while True:
        inputs = torch.randn(rows, FEATURES, generator=generator)
        labels = inputs @ weight.T + noise * torch.randn(rows, OUTPUTS, generator=generator)
        yield inputs.to(ctx.device), labels.to(ctx.device)
