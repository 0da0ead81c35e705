"""Liger's rotary embedding gives all rows of a batch the positions of the first row.

If a batch has the same positions in each row, cosines and sines have the shape [1, length, width],
and the kernel is right. With position ids of its own for each row, they are [rows, length, width].
Then each row is rotated by the positions of the first row, without an error: queries and keys of
the other rows are wrong, and so are their gradients. This affects rows with several documents, of
which each begins at position 0: the documents of the other rows begin where those of the first do.
transformers passes position ids on as they are given, so that a model with
``apply_liger_kernel_to_llama`` trains on wrong positions.

Root cause: the kernel takes the row of ``cos`` and ``sin`` as ``pid % length``, where ``pid``
counts the positions of all rows. The stride from one row to the next is missing. Since 0.5.3 the
kernel knows how many rows the cosines have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


HEADS, WIDTH = 2, 16


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Plain torch's rotary embedding of queries and keys [rows, heads, length, width], joined;
    ``cos`` and ``sin`` are [rows, length, width]."""
    import torch

    both = torch.cat([query, key], dim=1)
    left, right = both.chunk(2, dim=-1)
    return both * cos[:, None] + torch.cat([-right, left], dim=-1) * sin[:, None]


def as_first(inputs: dict[str, Tensor], cos: Tensor, sin: Tensor, gradient: Any) -> kernels.Results:
    """All rows are rotated by the positions of the first row, forwards and backwards."""

    def by_first(query: Tensor, key: Tensor) -> Tensor:
        return rotated(query, key, cos[:1], sin[:1])

    return kernels.results(by_first, inputs, gradient)


oracle = kernels.Kernel(
    as_first, "exactly that follows if all rows have the positions of the first row", checks=()
)


def run(ctx: api.Context) -> None:
    """Rotate queries and keys, and compute the gradients of a weighted sum of them."""
    import torch
    from liger_kernel.ops.rope import LigerRopeFunction

    p = ctx.params
    sizes = {"query": (p.rows, HEADS, p.length, WIDTH), "key": (p.rows, HEADS, p.length, WIDTH)}
    positions = torch.arange(p.length, device=ctx.device).repeat(p.rows, 1)
    positions[1:, p.first :] -= p.first
    rates = 10000 ** -(torch.arange(0, WIDTH, 2, device=ctx.device) / WIDTH)
    angles = (positions[..., None] * rates).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()

    def upstream(query: Tensor, key: Tensor) -> Any:
        # The kernel writes into its arguments, as in a model, where they are of no further use.
        return torch.cat(LigerRopeFunction.apply(query * 1, key * 1, cos, sin), dim=1)

    def plain(query: Tensor, key: Tensor) -> Tensor:
        return rotated(query, key, cos, sin)

    for step in api.each(p.steps):
        inputs = kernels.random(ctx, step, **sizes)
        weights = kernels.random(ctx, -step, both=(p.rows, 2 * HEADS, p.length, WIDTH))["both"]
        kernels.record(
            ctx,
            step,
            computed=kernels.results(upstream, inputs, weights),
            right=kernels.results(plain, inputs, weights),
            documented=as_first(inputs, cos, sin, weights),
        )
