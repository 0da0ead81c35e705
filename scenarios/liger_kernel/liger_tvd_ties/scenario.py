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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Params(api.Knobs):
    steps: int = api.knob(2, least=1, about="each with other numbers")
    rows: int = api.knob(8, least=2, about="of a step")
    equal: int = api.knob(16, least=0, about="entries of the vocabulary with equal probabilities")


VOCABULARY = 48
"""Entries with other probabilities."""

SCENARIO = api.Scenario(
    report=(
        "LigerTVDLoss returns a non-zero gradient where p == q",
        "https://github.com/linkedin/Liger-Kernel/issues/1373",
    ),
    fix="https://github.com/linkedin/Liger-Kernel/pull/1374",
    symptom="where p equals q, the gradient is -0.5 divided by the batch instead of 0; the loss is "
    "correct",
    trigger="LigerTVDLoss, and probabilities of the student that equal the teacher's",
    remedy="compute the loss in plain torch, as half the sum of (p - q).abs()",
    pins={"liger-kernel": "0.8.3"},
    releases="liger-kernel>=0.6",  # the kernel of 0.5.4 to 0.5.10 was not run on a GPU
    absent=(
        api.Absent(
            "liger-kernel<0.5.4",
            "the loss came with 0.5.4",
            "https://github.com/linkedin/Liger-Kernel/pull/324",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={"code": api.by_code("LigerTVDLoss compares equal probabilities")},
    files=("liger_kernel/ops/tvd.py",),
    ranks=1,
    lanes=(api.Lane.GPU,),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.8.4"),
        "control": api.control("0.8.3, no probabilities are equal", params={"equal": 0}),
    },
)


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


def exercised(records: api.Records) -> api.Exercise:
    """Some entries had the same probability, 0, for student and teacher."""
    equal = records.params.equal
    return api.Exercise.of(
        equal > 0, f"{equal} entries had the probability 0 in both models", "none were equal"
    )
