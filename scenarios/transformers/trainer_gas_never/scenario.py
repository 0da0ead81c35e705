"""With gradient accumulation, the Trainer sums the micro-batches' gradients of your own modules.

With ``gradient_accumulation_steps=4`` each update is 4 times the right one, with 8 it is 8 times.
transformers 4.46 and 4.47 are affected, if the model's ``forward`` has no ``**kwargs``: your own
modules, and those of many libraries. 4.46.3 logs the right loss, so nothing shows it; 4.47.1 logs 4
times the loss. AdamW hardly depends on the size of a gradient; clipping and SGD do.

Root cause: until 4.45 accelerate divided each loss by the number of micro-batches. 4.46 no longer
passes that number to accelerate, because the model is expected to divide by ``num_items_in_batch``
instead. A model whose ``forward`` has no ``**kwargs`` never gets this and returns a mean, so nobody
divides. The fix lets the Trainer divide for these models. The same release broke the others:
``trainer_gas_llama``.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.transformers import _trainer_gas as gas
from scenarios.transformers._normaliser import SUM, TOKENS


def never_divided(step: gas.Step, records: api.Records) -> bool:
    """Each update is the right one times the number of accumulation steps; the loss that is logged
    is the mean or the sum of the micro-batches' losses."""
    return step.times(records.params.accumulation) and gas.logged_as(records, TOKENS, SUM)


def divided_twice(step: gas.Step, records: api.Records) -> bool:
    """The symptom of ``trainer_gas_twice``."""
    return step.times(1 / records.params.accumulation) and gas.logged_as(records, TOKENS, SUM)


oracle = gas.Accumulated(
    gas.Step, never_divided, right=(TOKENS, SUM), instead={"trainer_gas_twice": divided_twice}
)
run = gas.run
