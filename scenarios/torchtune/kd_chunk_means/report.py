"""Compute torchtune's distillation loss in chunks and as a whole: are the gradients equal?

Needs torch, torchtune and torchao, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from torchtune.modules.loss.kd_losses import ForwardKLWithChunkedOutputLoss

torch.manual_seed(0)
student, teacher = torch.randn(2, 16, 8, requires_grad=True), torch.randn(2, 16, 8)
labels = torch.zeros(2, 16, dtype=torch.long)
labels[:, :6] = -100  # the prompt


def gradient(chunks: int) -> tuple[float, list[float]]:
    """The loss, and the norms of the gradients of the first row's tokens 4 to 11."""
    parts: Any = ([*logits.chunk(chunks, dim=1)] for logits in (student, teacher))
    loss = ForwardKLWithChunkedOutputLoss(num_output_chunks=chunks)(*parts, labels)
    (gradients,) = torch.autograd.grad(loss, student)
    return loss.item(), [round(float(g.norm()), 3) for g in gradients[0, 4:12]]


print("torchtune", version("torchtune"))
for chunks in (1, 2, 8):
    loss, norms = gradient(chunks)
    print(f"{chunks} chunk(s): loss {loss:.4f}, gradients {norms}")
is_wrong = norms != gradient(1)[1]
print("WRONG: the loss depends on the chunks" if is_wrong else "right: chunks change nothing")
raise SystemExit(3 if is_wrong else 0)
