"""Liger's cosine loss also teaches the positions that ignore_index masks.

This affected users of ``LigerFusedLinearCosineSimilarityLoss`` who distil a model and mask the
positions of prompts and padding with ``ignore_index``. The student followed the teacher there, too.
From 0.6.5 on that had twice the weight: the sum over all positions was divided by the number of
those with a label. With three quarters masked, the teacher's part of the loss was four times as
strong as chosen, and three quarters of it were about the prompt.

Root cause: the function that compares the student with the teacher did not use the labels that the
base class passes to it, and added the distances of all positions. Since 0.8.4 it sets those of
masked positions to 0, as that of the JSD loss does since 0.6.5.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.liger_kernel import _distillation as distillation
from scenarios.liger_kernel._distillation import Params as Params

SCENARIO = api.Scenario(
    report=(
        "Fix ignored-token masking in cosine distillation",
        "https://github.com/linkedin/Liger-Kernel/pull/1478",
    ),
    fix="https://github.com/linkedin/Liger-Kernel/pull/1478",
    symptom="positions with ignore_index change the loss and get gradients of the soft loss",
    trigger="LigerFusedLinearCosineSimilarityLoss, and labels that are ignore_index",
    remedy="pass the loss only the positions that have a label",
    pins={"liger-kernel": "0.8.3"},
    harm="ruins training",
    visibility="silent",
    settings={
        "code": api.by_code(
            "LigerFusedLinearCosineSimilarityLoss gets labels that are ignore_index"
        )
    },
    seen={
        "liger_kernel.chunked_loss.cosine_similarity_loss.LigerFusedLinearCosineSimilarityLoss": (
            api.NEEDED
        )
    },
    files=("liger_kernel/chunked_loss/cosine_similarity_loss.py",),
    releases="liger-kernel>=0.6",
    absent=(api.Absent("liger-kernel<0.6", "the loss came with 0.6.0"),),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.8.4"),
        "control": api.control("0.8.3 with a label at each position", params={"ignored": 0}),
        "teacher": api.expect_symptom(
            about="0.8.3 with the teacher's part of the loss alone", params={"hard": 0.0}
        ),
        "mostly": api.expect_symptom(
            about="0.8.3 with three quarters of the positions masked", params={"ignored": 12}
        ),
    },
)

oracle = distillation.oracle
exercised = distillation.exercised


def run(ctx: api.Context) -> None:
    """Distil a small model with the loss; its positions with a label alone are the reference."""
    from liger_kernel.chunked_loss import LigerFusedLinearCosineSimilarityLoss

    def make(hard: float, soft: float) -> Any:
        return LigerFusedLinearCosineSimilarityLoss(
            weight_hard_loss=hard, weight_soft_loss=soft, compiled=False
        )

    distillation.train(ctx, make)
