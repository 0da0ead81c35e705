"""Plain torch's normalised linear attention, and a comparison of flash-linear-attention's with it.

A query q at position t sees the values v up to t: the sum of (q k) v over these positions, divided
by the sum of (q k).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor

HEADS, WIDTH = 2, 16
Keys = Callable[["Tensor"], "Tensor"]
"""The keys that a divisor sums up, from keys [rows, length, heads, width]."""


def summed(key: Tensor) -> Tensor:
    """The sum of the keys up to each position."""
    return key.cumsum(1)


def attention(query: Tensor, key: Tensor, value: Tensor, keys: Keys | None) -> Tensor:
    """Linear attention of tensors [rows, length, heads, width], divided by the product of the query
    and ``keys``; not divided if that is None."""
    import torch

    query = query * WIDTH**-0.5
    scores = torch.einsum("bthd,bshd->bhts", query, key).tril()
    output = torch.einsum("bhts,bshd->bthd", scores, value)
    return output / (query * keys(key)).sum(-1, keepdim=True) if keys else output


def compare(ctx: api.Context, documented: Callable[..., kernels.Results]) -> None:
    """Compute the attention in each step, and the gradients of a weighted sum of its outputs."""
    from fla.ops.linear_attn import fused_recurrent_linear_attn

    kernels.keep_one_configuration("fla")
    p = ctx.params
    size = (2, p.length, HEADS, WIDTH)

    def upstream(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return fused_recurrent_linear_attn(
            query, key, value, scale=WIDTH**-0.5, normalize=p.normalize
        )[0]

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, summed if p.normalize else None)

    for step in api.each(p.steps):
        # Positive, as after a feature map: otherwise a divisor may be near 0.
        drawn = kernels.random(ctx, step, query=size, key=size, value=size)
        inputs = {name: values.abs() + 0.1 for name, values in drawn.items()}
        weights = kernels.random(ctx, -step, output=size)["output"]
        kernels.record(
            ctx,
            step,
            computed=kernels.results(upstream, inputs, weights),
            right=kernels.results(plain, inputs, weights),
            documented=documented(inputs, weights),
        )


def normalised(records: api.Records) -> api.Exercise:
    """The output was divided by the sum of its scores."""
    return api.Exercise.of(
        records.params.normalize, "the output was normalised", "it was not normalised"
    )
