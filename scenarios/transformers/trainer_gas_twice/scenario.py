"""With gradient accumulation, the Trainer divides each update twice by the number of micro-batches.

With ``gradient_accumulation_steps=4`` every update is a quarter of the right one, with 8 an eighth.
The logged loss is right, so the training just looks slow. transformers 5.2.0 to 5.5.3, released
over two months in 2026, are affected, both with transformers' models and with your own modules.

Root cause: accelerate's ``backward`` divides the loss by accelerate's number of accumulation steps.
This number must be 1, because the loss is already divided: by the Trainer, or by the model (by the
number of tokens in all micro-batches). 5.2.0 passes ``sync_each_batch`` to accelerate in a plugin.
It set the plugin's ``num_steps`` to the Trainer's ``gradient_accumulation_steps``, so accelerate
divided again. The Trainer takes the logged loss before ``backward`` divides it. The fix sets
``num_steps`` to 1.

We know of no report of this symptom. Issue 45305 (April 2026) has the same cause but not this
effect: with DeepSpeed accelerate does not divide. There gradients were too large: they were summed,
not averaged.
``report.py`` shows the bug without this project. The bug is in how these releases of transformers
call accelerate. No release of accelerate is at fault.
"""

from __future__ import annotations

from functools import partial

from harness.bugs import api
from scenarios.transformers import _trainer_gas as gas
from scenarios.transformers._normaliser import SUM, TOKENS


def divided_twice(step: gas.Step, records: api.Records) -> bool:
    """Each update is the right one divided by the number of accumulation steps, and the logged loss
    is right."""
    return step.times(1 / records.params.accumulation) and gas.logged_as(records, TOKENS)


def never_divided(step: gas.Step, records: api.Records, model: str) -> bool:
    """The symptom of the opposite bug; a model of the other kind does not have it."""
    p = records.params
    multiplied = p.model == model and step.times(p.accumulation)
    return multiplied and gas.logged_as(records, TOKENS, SUM)


def logged_unlike(records: api.Records) -> dict[str, bool]:
    """The logged loss is from before the division."""
    return {"the logged loss is not the mean over all tokens": not gas.logged_as(records, TOKENS)}


oracle = gas.Accumulated(
    gas.Step,
    divided_twice,
    instead={
        "trainer_gas_never": partial(never_divided, model="plain"),
        "trainer_gas_llama": partial(never_divided, model="llama"),
    },
    checks=[logged_unlike],
)
run = gas.run
