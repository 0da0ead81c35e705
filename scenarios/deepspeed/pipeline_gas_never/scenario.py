"""With pipeline parallelism, DeepSpeed sums the gradients of micro-batches instead of averaging.

With gradient accumulation over GAS micro-batches, every stage applies GAS times the right gradient.
The reported loss is right, and every gradient points the right way. AdamW hardly depends on the
size of a gradient, and clipping hides it; SGD, the threshold of clipping and the logged norm do
depend on it.

Root cause: 0.16.0 moved the division by GAS behind the switch that controls whether gradients are
reduced at the end of a step. The pipeline turns that switch off, because it reduces them itself. So
nothing divides any more. 0.18.3 divides again, but too often: ``pipeline_gas_twice``. So a sweep of
all releases finds, in this order: right up to 0.15.4; GAS times too large; too small on all stages
but the last; right again from 0.19.3 on.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _stages as stages

Params = stages.Params

SCENARIO = api.Scenario(
    report=(
        "[BUG] Gradients are summed instead of averaged when using gradient accumulation steps "
        "with pipeline parallelism",
        "https://github.com/deepspeedai/DeepSpeed/issues/7773",
    ),
    fix="by 0.18.3, which has pipeline_gas_twice instead; right since https://github.com/deepspeedai/DeepSpeed/pull/8154",
    symptom="all stages apply GAS times the gradient",
    trigger="pipeline parallelism and gradient accumulation",
    pins={"deepspeed": "0.18.2"},
    absent=(
        api.Absent(
            "deepspeed<0.16",
            "the division moved behind the switch in 0.16.0",
            "https://github.com/deepspeedai/DeepSpeed/pull/6675",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={"pipeline_parallel": api.above(1), "gradient_accumulation_steps": api.above(1)},
    files=("deepspeed/runtime/engine.py", "deepspeed/runtime/pipe/engine.py"),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.19.3"),
        "before": api.expect_clean("0.15.4"),
        "four_stages": api.expect_symptom(
            about="0.18.2 with four stages: the factor is the same on all", ranks=4
        ),
        "one_stage": api.expect_symptom(about="0.18.2 with all layers in one stage", ranks=1),
        "control": api.control(
            "0.18.2 with one micro-batch: nothing to divide by", params={"micro_batches": 1}
        ),
    },
)
oracle = stages.Stages(
    stages.Step,
    stages.never_divided,
    parts=lambda at: at.params.micro_batches,
    instead={"pipeline_gas_twice": stages.divided_again},
)
run = stages.run


def exercised(records: api.Records) -> api.Exercise:
    """A step of the pipeline, even of one stage, had several micro-batches."""
    ranks, count = stages.count(records), records.params.micro_batches
    text = f"a pipeline of {ranks} stages accumulated over {count} micro-batches"
    return api.Exercise.of(count > 1, text)
