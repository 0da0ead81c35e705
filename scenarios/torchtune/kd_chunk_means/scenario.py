"""torchtune's chunked distillation loss is a mean of the chunks' means: tokens weigh unequally.

This affected knowledge distillation with ``ForwardKLWithChunkedOutputLoss``, the loss of
torchtune's recipes for it. The loss is computed in 8 chunks of the sequence, to save memory, and
should be that of the whole. But each chunk was divided by its own number of labels, and the sum by
the number of chunks. A token in a chunk with part of a masked prompt weighs more than others, and a
chunk without labels makes all of them weigh less: with six of sixteen tokens masked the loss is
1.60 instead of 2.56. So the length of the gradient, and with other lengths of prompts its
direction, depend on the number of chunks.

Root cause: ``ForwardKLLoss``, which divides by the labels, is called for each chunk. Since 0.4.0 it
adds for chunks, and the sum is divided by all labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

ROWS, TOKENS, WIDTH, VOCABULARY, IGNORED = 2, 16, 4, 8, -100


oracle = features.Feature("exactly that follows if each chunk has its own mean")


def run(ctx: api.Context) -> None:
    """Distil a linear map with the chunked loss; the loss without chunks is the reference."""
    import torch
    from torchtune.modules.loss.kd_losses import ForwardKLLoss, ForwardKLWithChunkedOutputLoss

    p = ctx.params
    torch.manual_seed(ctx.seed)
    student, teacher = (torch.nn.Linear(WIDTH, VOCABULARY).to(ctx.device) for _ in range(2))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    whole, chunked = ForwardKLLoss(), ForwardKLWithChunkedOutputLoss(num_output_chunks=p.chunks)

    def of_chunks(tensor: Tensor) -> list[Tensor]:
        return list(tensor.chunk(p.chunks, dim=1))

    def mean(logits: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = whole(logits.flatten(0, 1), outputs.flatten(0, 1), labels.flatten())
        return value

    for step in api.each(p.steps):
        rows = torch.randn(ROWS, TOKENS, WIDTH, device=ctx.device)
        labels = torch.randint(VOCABULARY, (ROWS, TOKENS), device=ctx.device)
        labels[:, : p.masked] = IGNORED
        outputs = teacher(rows).detach()
        expected = features.of_losses(student, [mean(student(rows), outputs, labels)])
        parts: Any = zip(*map(of_chunks, (student(rows), outputs, labels)), strict=True)
        documented = features.of_losses(student, [mean(*part) for part in parts])
        optimizer.zero_grad()
        loss = chunked(of_chunks(student(rows)), of_chunks(outputs), labels)
        loss.backward()
        features.record(ctx, step, loss, features.gradients(student), expected, documented)
        optimizer.step()
