"""The fused loss of single tokens ignores all weights but the first: wrong gradients.

``LigerFusedLinearCrossEntropyLoss(reduction="none")`` returns a loss for each token, so that the
training script can weight or mask them: padding, prompts, importance weights, advantages. The
losses are right. But the whole gradient, of the weight and of the hidden states, is the sum over
all tokens with a weight of 1, times the weight of the first token. If the first token is masked,
as the prompt is, then the gradient is 0 and the model does not learn. Otherwise it learns from the
tokens that should be masked. No error is raised, and the reported loss is right.

Root cause: the kernel computes the gradients in the forward pass and sums them over the tokens.
In the backward pass ``element_mul_kernel`` multiplies them by ``grad_output``, of which it reads
only the first number. For a loss of single tokens it is a vector. Since 0.8.2 the backward pass
computes the gradients of such a loss itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


WIDTH, VOCABULARY = 16, 32


def by_the_first(plain: Any, inputs: dict[str, Tensor], weights: Tensor) -> kernels.Results:
    """The losses are right. The gradients are those of tokens that all have the weight of the first
    one."""
    return kernels.results(plain, inputs, weights[0].expand(len(weights)))


oracle = kernels.Kernel(
    by_the_first, "exactly that follows if the weight of the first token is used for all tokens"
)


def run(ctx: api.Context) -> None:
    """Compute the loss of each token, and the gradients of their weighted sum."""
    import torch
    from liger_kernel.transformers.fused_linear_cross_entropy import (
        LigerFusedLinearCrossEntropyLoss,
    )

    p, fused = ctx.params, LigerFusedLinearCrossEntropyLoss(reduction="none")
    weights = torch.ones(p.tokens, device=ctx.device)
    weights[0] = p.first
    for step in api.each(p.steps):
        inputs = kernels.random(ctx, step, hidden=(p.tokens, WIDTH), weight=(VOCABULARY, WIDTH))
        targets = torch.arange(step, p.tokens + step, device=ctx.device) % VOCABULARY

        def upstream(hidden: Tensor, weight: Tensor, targets: Tensor = targets) -> Any:
            return fused(weight, hidden, targets)

        def plain(hidden: Tensor, weight: Tensor, targets: Tensor = targets) -> Tensor:
            logits = hidden @ weight.T
            return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

        kernels.record(
            ctx,
            step,
            computed=kernels.results(upstream, inputs, weights),
            right=kernels.results(plain, inputs, weights),
            documented=by_the_first(plain, inputs, weights),
        )
