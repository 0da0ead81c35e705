"""Distil a model into itself by Liger's total variation loss: is the gradient 0?

Needs torch, liger-kernel and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from liger_kernel.transformers.tvd import LigerTVDLoss

torch.manual_seed(0)
teacher = torch.randn(8, 64, device="cuda").softmax(-1)
student = teacher.clone().requires_grad_()
loss = LigerTVDLoss()(student, teacher)
(gradient,) = torch.autograd.grad(loss, [student])
plain = (student - teacher).abs().sum() / 2 / len(student)
(expected,) = torch.autograd.grad(plain, [student])
print(f"liger-kernel {version('liger-kernel')}, 8 rows of equal probabilities")
print(f"loss {loss.item():.3g}, its gradient from {gradient.min():.4g} to {gradient.max():.4g}")
print(f"torch's gradient from {expected.min():.4g} to {expected.max():.4g}")
has_bug = not torch.allclose(gradient, expected)
print("WRONG: equal probabilities are moved" if has_bug else "right: nothing is moved")
raise SystemExit(3 if has_bug else 0)
