"""Mask half of the positions in Liger's cosine loss: does the student learn from the others alone?

Needs torch and liger-kernel, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from liger_kernel.chunked_loss import LigerFusedLinearCosineSimilarityLoss

torch.manual_seed(0)
student, teacher = torch.randn(2, 8, 4), torch.randn(2, 16, 4)  # hidden states, heads
labels = torch.randint(16, (8,))
masked = labels.clone()
masked[:4] = -100
loss = LigerFusedLinearCosineSimilarityLoss(compiled=False)


def gradient(labels: torch.Tensor, at: slice) -> Any:
    states = student[0].clone().requires_grad_()
    loss(states[at], teacher[0], student[1][at], teacher[1], labels[at]).backward()
    gradient: Any = states.grad
    return gradient.norm(dim=1)


actual, expected = gradient(masked, slice(None)), gradient(labels, slice(4, None))
print(f"liger-kernel {version('liger-kernel')}: the norm of the gradient of each position")
print("positions 0 to 3 masked:  ", [round(float(norm), 4) for norm in actual])
print("positions 4 to 7 alone:   ", [round(float(norm), 4) for norm in expected])
is_wrong = not torch.allclose(actual, expected, rtol=1e-3)
print("WRONG: masked positions are trained" if is_wrong else "right: masked positions are left out")
raise SystemExit(3 if is_wrong else 0)
