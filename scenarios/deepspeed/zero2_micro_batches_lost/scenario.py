"""At ZeRO stage 2, each accumulated micro-batch replaces the one before: only the last is trained.

With gradient accumulation over 4 micro-batches, three of the four are read, computed, and dropped:
each update is a quarter of the last one's gradient. The losses are right, all ranks agree, and the
training makes progress on the rest. The reported gradient norm is too small. Without accumulation,
and at other stages, nothing is lost.

Root cause: with the Muon optimizer, 0.17.6 introduced a second store for the gradients of earlier
micro-batches. But the code still checks the old store for such gradients. The old store is filled
only at the last micro-batch, so each micro-batch counts as the first and overwrites the new store.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, usual_checks


@dataclass
class Params(api.Knobs):
    micro_batches: int = api.knob(
        4, least=1, most=8, about="GAS: a step averages the gradients of this many"
    )
    zero_stage: int = api.knob(2, choices=(0, 1, 2), about="stage of ZeRO")
    batch: int = api.knob(4, least=1, unit="rows", about="size of a rank's micro-batch")
    steps: int = api.knob(5, least=1, about="steps of training")
    lr: float = api.knob(0.1, above=0, about="learning rate of SGD")


SCENARIO = api.Scenario(
    report=(
        "[BUG]Incorrect gradient computation in ZeRO-2 with DeepSpeed ≥ 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/issues/7718",
        "https://github.com/huggingface/accelerate/issues/3877",
        "https://github.com/huggingface/trl/issues/4540",
    ),
    fix="deepspeed 0.18.3",
    symptom="with ZeRO-2 the gradient norm is much smaller than with 0.17.5 or with ZeRO-3; the "
    "losses are about the same at first",
    trigger="ZeRO-2 and gradient accumulation",
    remedy="use ZeRO stage 1",
    pins={"deepspeed": "0.18.2"},
    absent=(
        api.Absent(
            "deepspeed<0.17.6",
            "the second store of gradients came with 0.17.6",
            "https://github.com/deepspeedai/DeepSpeed/pull/7509",
        ),
    ),
    harm="loses data",
    visibility="silent",
    settings={"zero_stage": 2, "gradient_accumulation_steps": api.above(1)},
    files=("deepspeed/runtime/zero/stage_1_and_2.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.18.3"),
        "before": api.expect_clean("0.17.5"),
        "control": api.control("0.18.2 without accumulation", params={"micro_batches": 1}),
        "stage_1": api.control("0.18.2 at ZeRO stage 1", params={"zero_stage": 1}),
    },
)


oracle = applied.Applied(
    applied.Step,
    applied.last_only,
    parts=lambda at: at.params.micro_batches,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with SGD; compare each step with plain torch's gradients."""
    from scenarios.deepspeed import _linear_steps as linear_steps

    p = ctx.params
    zero = {"stage": p.zero_stage}
    linear_steps.train(
        ctx, 5.0, 0.1, p.micro_batches, zero_allow_untested_optimizer=True, zero_optimization=zero
    )


def exercised(records: api.Records) -> api.Exercise:
    """ZeRO was at stage 2, and there were micro-batches before the last."""
    p = records.params
    text = f"each step had {p.micro_batches} micro-batches, at ZeRO stage {p.zero_stage}"
    return api.Exercise.of(p.zero_stage == 2 and p.micro_batches > 1, text)
