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
