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
from scenarios.liger_kernel._distillation import Params as Params

SCENARIO = api.Scenario(
    report=(
        "Fix: fix ignore_index not being applied in JSD distillation loss",
        "https://github.com/linkedin/Liger-Kernel/pull/974",
    ),
    fix="https://github.com/linkedin/Liger-Kernel/pull/974",
    symptom="all tokens, including those of the prompt and the padding, are in the loss",
    trigger="LigerFusedLinearJSDLoss, and labels that are ignore_index",
    remedy="pass the loss only the positions that have a label",
    pins={"liger-kernel": "0.6.4"},
    harm="ruins training",
    visibility="silent",
    settings={"code": api.by_code("LigerFusedLinearJSDLoss gets labels that are ignore_index")},
    seen={"liger_kernel.chunked_loss.jsd_loss.LigerFusedLinearJSDLoss": api.NEEDED},
    files=(
        "liger_kernel/chunked_loss/fused_linear_distillation.py",
        "liger_kernel/chunked_loss/jsd_loss.py",
    ),
    releases="liger-kernel>=0.5.3",
    absent=(api.Absent("liger-kernel<0.5.3", "the loss came with 0.5.3"),),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.6.5"),
        "control": api.control("0.6.4 with a label at each position", params={"ignored": 0}),
        "teacher": api.expect_symptom(
            about="0.6.4 with the teacher's part of the loss alone", params={"hard": 0.0}
        ),
    },
)

oracle = distillation.oracle
exercised = distillation.exercised


def run(ctx: api.Context) -> None:
    """Distil a small model with the loss; its positions with a label alone are the reference."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    def make(hard: float, soft: float) -> Any:
        return LigerFusedLinearJSDLoss(weight_hard_loss=hard, weight_soft_loss=soft, compiled=False)

    distillation.train(ctx, make)
