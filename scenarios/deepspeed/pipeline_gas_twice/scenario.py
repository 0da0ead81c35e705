"""With pipeline parallelism and gradient accumulation, all stages but the last train too slowly.

Each stage of DeepSpeed's pipeline divides by the number of micro-batches (GAS) again. The last
stage applies the right gradient, the stage before it 1/GAS of that, and the one before 1/GAS
squared. With two stages and GAS 4, half of the model learns at a quarter of its learning rate. The
reported loss is right, every gradient points the right way, and nothing fails.

Reported in July 2026 for DeepSpeed 0.19.2. Root cause: since 0.18.3 a hook on the output of a
stage's forward divides the gradient that arrives there by GAS, so that users may call
``loss.backward()`` directly. In a pipeline every stage has the hook, and the gradient that arrives
at a stage has been divided by the stage behind it. The fix divides on the last stage only.

Releases 0.16.0 to 0.18.2 have the opposite bug (DeepSpeed 7773): they never divide, and all stages
apply GAS times the gradient. Here that does not count as the documented symptom.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _stages as stages

oracle = stages.Stages(
    stages.Step,
    stages.divided_again,
    parts=lambda at: at.params.micro_batches,
    words=stages.of_all_stages,
    instead={"pipeline_gas_never": stages.never_divided},
)
run = stages.run


def exercised(records: api.Records) -> api.Exercise:
    """There were several stages, and several micro-batches in a step."""
    ranks, count = stages.count(records), records.params.micro_batches
    text = f"{ranks} stages accumulated over {count} micro-batches"
    return api.Exercise.of(ranks > 1 and count > 1, text)
