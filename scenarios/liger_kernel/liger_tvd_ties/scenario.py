"""Liger's total variation loss pushes down probabilities that are right already.

``LigerTVDLoss`` is half the sum of the distances between the student's and the teacher's
probabilities, for distillation. Where both are equal, its derivative is 0, in torch and by
symmetry. The kernel gives -0.5 there, as if the student's probability were too small. That happens
with every distillation of a model into itself or its copy, whose loss is 0 and whose gradient is
not, and for each padded entry of the vocabulary, which both models give the probability 0. The loss
is right, and no error is raised.

Root cause: the kernel has two cases, ``p > q`` and otherwise, so that equal probabilities fall into
the second one. Since 0.8.4 it has a third case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


VOCABULARY = 48
"""Entries with other probabilities."""


def plain(student: Tensor, teacher: Tensor) -> Tensor:
    """Plain torch's loss of probabilities [rows, entries], divided by the rows."""
    return (student - teacher).abs().sum() / 2 / len(student)


def pushed_down(student: Tensor, teacher: Tensor) -> kernels.Results:
    """The loss is right. The gradient is -0.5, divided by the rows, also where the probabilities
    are equal."""
    return {"student": ((student > teacher).float() - 0.5) / len(student)}


oracle = kernels.Kernel(
    pushed_down, "exactly that follows if equal probabilities count as too small ones"
)


def run(ctx: api.Context) -> None:
    """Compute the loss of probabilities, some of which are equal, and its gradient."""
    import torch
    from liger_kernel.transformers.tvd import LigerTVDLoss

    p, upstream = ctx.params, LigerTVDLoss()
    incoming = torch.ones((), device=ctx.device)
    for step in api.each(p.steps):
        sizes = {"student": (p.rows, VOCABULARY), "teacher": (p.rows, VOCABULARY)}
        drawn = kernels.random(ctx, step, **sizes)
        padding = torch.zeros(p.rows, p.equal, device=ctx.device)
        student, teacher = (
            torch.cat([logits.softmax(-1), padding], dim=-1) for logits in drawn.values()
        )

        def fused(student: Tensor, teacher: Tensor = teacher) -> Any:
            return upstream(student, teacher)

        def reference(student: Tensor, teacher: Tensor = teacher) -> Tensor:
            return plain(student, teacher)

        kernels.record(
            ctx,
            step,
            computed=kernels.results(fused, {"student": student}, incoming),
            right=kernels.results(reference, {"student": student}, incoming),
            documented=pushed_down(student, teacher),
        )
