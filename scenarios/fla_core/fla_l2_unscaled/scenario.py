"""The penalty on the largest logit ignores the scale of the loss: too strong when accumulating.

``l2_warp`` adds a small penalty on the largest logit of each token, as RWKV's training does. It is
on by default for RWKV-7 and an option of the other models of flash-linear-attention. It changes
only the gradient. If the loss is scaled, by 1 / micro-batches when gradients are accumulated, by a
loss scale of fp16, or by a weight, then the gradient of the cross entropy is scaled, but that of
the penalty is not: with 8 micro-batches the penalty is 8 times too strong, with a loss scale of
65536 it is practically off. The loss does not contain the penalty, so that nothing shows.

Root cause: ``L2Wrap.backward`` returns the gradient of the logits without a factor
``grad_output``. Since 0.5.2 it multiplies by it. The fused loss of the same package always did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


ROWS, LENGTH, VOCABULARY = 2, 8, 32
STRENGTH = 1e-4
"""Of the penalty: upstream's default."""


def unscaled(penalty: Tensor) -> kernels.Results:
    """The gradient of the penalty is that of a loss that is not scaled."""
    return {"penalty": penalty}


oracle = kernels.Kernel(
    unscaled, "exactly that follows if the penalty is not divided by {accumulation}", checks=()
)


def run(ctx: api.Context) -> None:
    """Compute the gradient of the logits with the penalty, and subtract the one without it."""
    import torch
    from fla.modules.l2warp import l2_warp

    share = 1 / ctx.params.accumulation
    for step in api.each(ctx.params.steps):
        logits = kernels.random(ctx, step, logits=(ROWS, LENGTH, VOCABULARY))["logits"]
        gradients: list[Tensor] = []
        for is_penalised in (True, False):
            leaf = logits.clone().requires_grad_()
            loss = torch.nn.functional.cross_entropy(
                leaf.flatten(0, 1), torch.arange(ROWS * LENGTH, device=ctx.device)
            )
            scaled = share * (l2_warp(loss, leaf) if is_penalised else loss)
            gradients += torch.autograd.grad(scaled, [leaf])
        greatest = logits.max(-1, keepdim=True)
        penalty = torch.zeros_like(logits).scatter_(-1, greatest.indices, greatest.values)
        penalty *= STRENGTH / (ROWS * LENGTH)
        kernels.record(
            ctx,
            step,
            computed={"penalty": gradients[0].double() - gradients[1].double()},
            right={"penalty": penalty * share},
            documented=unscaled(penalty),
        )
