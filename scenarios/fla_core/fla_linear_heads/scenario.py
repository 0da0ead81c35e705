"""Normalised linear attention divides by sums over heads instead of positions.

``chunk_linear_attn`` and its two siblings divide their output by the sum of the scores of all
earlier positions, unless ``normalize=False`` is given. With tensors [rows, length, heads, width],
the only layout that is supported, they sum the keys over the heads before a head instead: the
divisor knows nothing of earlier positions, and the output of a head depends on the keys of others.
Outputs grow with the position, where they should be means of values. All outputs and gradients are
wrong. A model trains with it anyway, as it often has a norm behind the attention, but it is another
model than the one of the paper, and it does not fit weights that were trained elsewhere.

Root cause: ``normalize_output`` calls ``k.cumsum(-2)``. That was right as long as heads came before
positions. When the layout changed, the dimension did not. Since 0.4.0 it is ``k.cumsum(1)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.bugs import api
from scenarios.common import kernels
from scenarios.fla_core import _linear_attention
from scenarios.fla_core._linear_attention import attention

if TYPE_CHECKING:
    from torch import Tensor


def over_heads(inputs: dict[str, Tensor], gradient: Tensor) -> kernels.Results:
    """The output and all gradients are those of a divisor that sums the keys of the same position
    over the heads."""

    def of_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, lambda key: key.cumsum(2))

    return kernels.results(of_heads, inputs, gradient)


oracle = kernels.Kernel(
    over_heads, "exactly that follows if the keys are summed over heads", checks=()
)


def run(ctx: api.Context) -> None:
    """Compare the attention and its gradients with plain torch's."""
    _linear_attention.compare(ctx, over_heads)


exercised = _linear_attention.normalised
