"""Normalised linear attention loses a part of the keys' gradient.

``chunk_linear_attn``, ``fused_chunk_linear_attn`` and ``fused_recurrent_linear_attn`` divide their
output by the sum of the scores, unless ``normalize=False`` is given. The output is right, and so
are the gradients of queries and values. But the gradient of the keys is only that of the numerator:
keys are trained as if they did not change the divisor. So a key that raises all scores seems to
raise the output, although that cancels. The projection of the keys, and all below it, take wrong
steps without an error.

Root cause: the sum of the keys is computed by a Triton kernel, ``chunk_global_cumsum``, which is
called outside of an autograd function. Its result has no ``grad_fn``, so that autograd stops there.
Since 0.5.1 the division has a backward pass of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.bugs import api
from scenarios.common import kernels
from scenarios.fla_core import _linear_attention
from scenarios.fla_core._linear_attention import attention, summed

if TYPE_CHECKING:
    from torch import Tensor


def numerator_only(inputs: dict[str, Tensor], gradient: Tensor) -> kernels.Results:
    """Only the gradient of the keys is wrong: it is the one for a divisor that does not depend on
    the keys."""

    def constant_divisor(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, lambda key: summed(key).detach())

    return {"key": kernels.results(constant_divisor, inputs, gradient)["key"]}


oracle = kernels.Kernel(
    numerator_only, "exactly that follows if the divisor does not depend on the keys"
)


def run(ctx: api.Context) -> None:
    """Compare the attention and its gradients with plain torch's."""
    _linear_attention.compare(ctx, numerator_only)


exercised = _linear_attention.normalised
