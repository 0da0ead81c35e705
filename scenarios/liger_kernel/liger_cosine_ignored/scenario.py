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

check_params = distillation.check_params
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
