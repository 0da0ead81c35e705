"""The causal convolution reads its incoming gradient as if it were contiguous: wrong gradients.

``causal_conv1d`` is the short convolution before the linear attention of Gated DeltaNet, KDA,
Mamba 2 and others. If its output is concatenated with other tensors, as the convolved queries, keys
and values are, then its gradient is a view of a larger tensor. The backward pass reads other
numbers of that larger tensor: the gradients of the input and of the filter have nothing to do with
the right ones. The outputs and the loss are right, and no error is raised, so that the model is
trained by noise below this layer.

Root cause: the Triton kernel of the backward pass addresses ``dy`` with the strides (D, 1) of a
contiguous tensor. It gets the strides of ``x``, but not those of ``dy``. Since 0.5.1 it gets both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


ROWS, WIDTH, FILTER = 2, 32, 4


def plain(x: Tensor, filter: Tensor) -> Tensor:
    """Plain torch's causal convolution of [rows, length, width] with a filter [width, taps]."""
    import torch

    padded = torch.nn.functional.pad(x.transpose(1, 2), (FILTER - 1, 0))
    return torch.nn.functional.conv1d(padded, filter[:, None], groups=WIDTH).transpose(1, 2)


def as_contiguous(inputs: dict[str, Tensor], gradient: Tensor) -> kernels.Results:
    """The outputs are right. The gradients are those of an incoming gradient that is read from the
    memory of the concatenated one without its strides."""
    rows, length, _ = gradient.shape
    memory = gradient.as_strided((rows, length, WIDTH), (length * WIDTH, WIDTH, 1))
    of_memory = kernels.results(plain, inputs, memory)
    return {name: of_memory[name] for name in inputs}


oracle = kernels.Kernel(
    as_contiguous, "exactly that follows if the incoming gradient is read without its strides"
)


def run(ctx: api.Context) -> None:
    """Convolve, concatenate, and compute the gradients of a weighted sum."""
    import torch
    from fla.modules.conv import causal_conv1d

    kernels.keep_one_configuration("fla")
    p = ctx.params
    others = torch.zeros(ROWS, p.length, p.beside, device=ctx.device)

    def joined(output: Tensor) -> Tensor:
        return torch.cat([output, others], dim=-1) if p.beside else output

    def upstream(x: Tensor, filter: Tensor) -> Tensor:
        return joined(causal_conv1d(x, filter)[0])

    def reference(x: Tensor, filter: Tensor) -> Tensor:
        return joined(plain(x, filter))

    for step in api.each(p.steps):
        inputs = kernels.random(ctx, step, x=(ROWS, p.length, WIDTH), filter=(WIDTH, FILTER))
        weights = kernels.random(ctx, -step, y=(ROWS, p.length, WIDTH + p.beside))["y"]
        kernels.record(
            ctx,
            step,
            computed=kernels.results(upstream, inputs, weights),
            right=kernels.results(reference, inputs, weights),
            documented=as_contiguous(inputs, weights),
        )
