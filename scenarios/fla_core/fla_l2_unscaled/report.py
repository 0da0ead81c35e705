"""Scale a loss with fla's penalty on the largest logit: is the penalty's gradient scaled, too?

Needs torch, fla-core and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from fla.modules.l2warp import l2_warp

torch.manual_seed(0)
logits = torch.randn(2, 8, 32, device="cuda", dtype=torch.float64)
targets = torch.arange(16, device="cuda")


def penalty(scale: float) -> float:
    """The norm of the penalty's part of the gradient of a scaled loss."""
    gradients = []
    for is_penalised in (True, False):
        leaf = logits.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(leaf.flatten(0, 1), targets)
        scaled = scale * (l2_warp(loss, leaf) if is_penalised else loss)
        gradients.append(torch.autograd.grad(scaled, [leaf])[0])
    return (gradients[0] - gradients[1]).norm().item()


whole, quarter = penalty(1), penalty(0.25)
print(f"fla-core {version('fla-core')}; the norm of the penalty's gradient")
print(f"is {whole:.3e}, and {quarter:.3e} if the loss is divided by 4")
has_bug = abs(quarter / whole - 0.25) > 0.03
print("WRONG: the penalty is not scaled" if has_bug else "right: it is scaled like the loss")
raise SystemExit(3 if has_bug else 0)
