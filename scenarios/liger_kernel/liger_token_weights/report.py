"""Weight the losses of single tokens of Liger's fused loss: are the gradients torch's?

Needs torch, liger-kernel and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

torch.manual_seed(0)
hidden, weight = torch.randn(8, 16, device="cuda"), torch.randn(32, 16, device="cuda")
hidden.requires_grad_()
targets = torch.arange(8, device="cuda")
importance = torch.tensor([0.25, 1, 1, 1, 1, 1, 1, 1], device="cuda")
fused = LigerFusedLinearCrossEntropyLoss(reduction="none")
gradients: list[torch.Tensor] = []
for is_fused in (True, False):
    leaf = weight.clone().requires_grad_()
    if is_fused:
        losses = fused(leaf, hidden, targets)
    else:
        losses = torch.nn.functional.cross_entropy(hidden @ leaf.T, targets, reduction="none")
    gradients += torch.autograd.grad((losses * importance).sum(), [leaf])
    print(f"{'liger' if is_fused else 'torch'}: losses {losses.detach().cpu().numpy().round(3)}")
kernel, plain = (gradient.norm().item() for gradient in gradients)
has_bug = not torch.allclose(*gradients, rtol=1e-3, atol=1e-3)
print(f"liger-kernel {version('liger-kernel')}, the norm of the weight's gradient: {kernel:.4f}")
print(f"torch: {plain:.4f}; all tokens with the weight 0.25 of the first would have less")
print("WRONG: only the first weight counts" if has_bug else "right: each token has its weight")
raise SystemExit(3 if has_bug else 0)
