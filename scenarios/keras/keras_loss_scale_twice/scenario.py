"""keras' LossScaleOptimizer over an optimizer with loss_scale_factor divides gradients twice.

With ``mixed_float16`` keras wraps the optimizer in a ``LossScaleOptimizer``, which scales the loss
by a factor of its own. If the user's optimizer has a ``loss_scale_factor``, the loss is not scaled
by it, but the gradients are divided by it, besides the division by the wrapper's factor. With 100
each step of SGD is a hundredth of the right one. The loss falls slowly, and no error is raised.

Root cause: ``LossScaleOptimizer.scale_loss`` replaces that of the inner optimizer. Its ``apply``
hands unscaled gradients to the inner one's ``apply``, which divides them once more. The fix sets
the inner optimizer's factor to None.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import applied


def divided_again(step: applied.Step, records: api.Records) -> bool:
    """Each step applied the right gradient, divided by loss_scale_factor."""
    return step.times(1 / (records.params.factor or 1))


oracle = applied.Applied(
    applied.Step,
    divided_again,
    loss="whole",
    reason="exactly that follows if the inner optimizer divides by a factor that the loss "
    "never had",
    checks=(applied.same_direction,),
)


def run(ctx: api.Context) -> None:
    """Train a linear map with a scaled loss, as a loop in torch with keras' optimizer does."""
    import keras
    import torch

    from scenarios.common import linear, plain_torch

    p = ctx.params
    torch.manual_seed(ctx.seed)
    model = linear.model().to(ctx.device)
    rows = linear.batches(ctx, model, 8, distance=2.0, noise=0.1)
    with keras.device(str(ctx.device)):
        weights = {n: keras.Variable(w.detach().cpu().numpy()) for n, w in model.named_parameters()}
        optimizer: Any = keras.optimizers.SGD(p.lr, loss_scale_factor=p.factor or None)
        if p.wrapped:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        for step in range(1, p.steps + 1):
            inputs, labels = next(rows)
            before = _copied(weights)
            plain = plain_torch.differentiate(
                plain_torch.loss_of(model, linear.loss), before, [(inputs, labels)]
            )
            leaves = {n: w.clone().requires_grad_() for n, w in before.items()}
            loss = plain_torch.loss_of(model, linear.loss)(leaves, (inputs, labels))
            optimizer.scale_loss(loss).backward()
            gradients = [leaf.grad for leaf in leaves.values()]
            with torch.no_grad():
                optimizer.apply(gradients, list(weights.values()))
            after = _copied(weights)
            facts = plain_torch.facts(plain, before, after, p.lr)
            ctx.record("step", step, loss=float(loss.detach()), **facts)


def _copied(weights: dict[str, Any]) -> dict[str, Any]:
    """The values of keras' variables, as tensors of torch."""
    return {name: variable.value.detach().clone() for name, variable in weights.items()}
