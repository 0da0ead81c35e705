"""With gradient accumulation, transformers 4.47.0 and 4.48.0 multiply the gradient of LLaMA.

With ``gradient_accumulation_steps=4`` each update and the logged loss are 4 times the right ones,
with 8 they are 8 times. This affects models whose ``forward`` takes ``num_items_in_batch``, such as
LLaMA and most language models.

Root cause: in ``training_step`` a condition is inverted. It passes ``num_items_in_batch`` only for
models that cannot take it. A LLaMA does not get it and returns a mean; the Trainer does not divide,
because this model is expected to do so. 4.47.1 corrected the condition. 4.48.0 brought the old one
back, together with the fix of ``trainer_gas_never``, and 4.48.1 corrected it again.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.transformers import _trainer_gas as gas
from scenarios.transformers._normaliser import SUM, TOKENS


def never_divided(step: gas.Step, records: api.Records) -> bool:
    """Each update and each logged loss is the right one times the number of accumulation steps."""
    return step.times(records.params.accumulation) and gas.logged_as(records, SUM)


def divided_twice(step: gas.Step, records: api.Records) -> bool:
    """The symptom of ``trainer_gas_twice``."""
    return step.times(1 / records.params.accumulation) and gas.logged_as(records, TOKENS)


oracle = gas.Accumulated(gas.Step, never_divided, instead={"trainer_gas_twice": divided_twice})
run = gas.run
