"""Liger's JSD loss teaches the prompt and the padding, too, and weakens the rest.

This affected users of ``LigerFusedLinearJSDLoss`` who mask positions with ``ignore_index``, as all
do who distil a model on answers to prompts: the trainers of trl and ms-swift use the loss if
``use_liger_kernel`` is set. The student followed the teacher at all positions, also at those of the
prompt and of the padding. The loss of the labels was right, but both parts were divided by the
number of all positions: with half of them masked, the labels counted half. So the strength of the
training depended on the padding. The loss falls as usual.

Root cause: the constructor took ``ignore_index``, but the function that compares the student with
the teacher got no labels. It added the divergence of all positions, and the base class divided by
the length of the batch. Since 0.6.5 masked positions are left out of both.
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
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    def make(hard: float, soft: float) -> Any:
        return LigerFusedLinearJSDLoss(weight_hard_loss=hard, weight_soft_loss=soft, compiled=False)

    distillation.train(ctx, make)
