"""ZeRO-3 without optimizer states loads the newest checkpoint instead of the one that is asked for.

``load_checkpoint(folder, tag="earlier", load_optimizer_states=False)`` is the way to evaluate an
older checkpoint, to go back to one, or to begin a fine-tuning from one. At ZeRO stage 3 the path
and the ``client_state`` that it returns are those of the tag. But the weights are those of the
checkpoint that the file ``latest`` names. So an evaluation of ten checkpoints evaluates the last
one ten times. If there is no ``latest``, the call raises.

Root cause: at stage 3 the weights are put together from the optimizers' shards. The engine calls
``get_fp32_state_dict_from_zero_checkpoint`` with the folder alone, and without a tag that function
reads ``latest``. That came with 0.10.2.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.call_edits import with_keyword
from scenarios.deepspeed import _loaded_alone as alone


def tag_passed_on(function: Any) -> api.Edits:
    """The weights are put together from the checkpoint of the tag."""
    yield from with_keyword(function, "get_fp32_state_dict_from_zero_checkpoint", "tag", "str(tag)")


plan = alone.plan


def run(ctx: api.Context) -> None:
    """Train and save twice; or load the earlier save by its tag."""
    alone.run(ctx, alone.EARLIER, load_optimizer_states=ctx.params.optimizer)


def detect(records: api.Records) -> api.Finding | None:
    """The loaded weights are those of the later save, although the earlier was asked for."""
    loaded = records.of("loaded")[0]
    if loaded[alone.EARLIER] and not loaded[alone.FRESH]:
        text = "the weights are those from before the load"
        return api.Finding(text, documented=False, another="zero3_module_only")
    newest = "they are those of the newest checkpoint"
    return alone.otherwise(records, alone.EARLIER, alone.LATER, newest)


def exercised(records: api.Records) -> api.Exercise:
    """The stage was 3, the optimizer's state was not loaded, and the two saves differed."""
    state = "with" if records.params.optimizer else "without"
    how = api.Exercise.of(not records.params.optimizer, f"loaded {state} the optimizer's state")
    return alone.at_stage_3(records) & how & alone.differed(records, alone.EARLIER, alone.LATER)


def first_loss_higher(records: api.Records) -> dict[str, bool]:
    """The loss after the load is far below that of weights that were not trained."""
    untrained = records.of("step", 0)[0]["loss"]
    after = records.of("loaded", 0)[0]["loss"]
    return {"the loss after the load is above the first of the training": after > untrained}


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The client_state is that of the tag, and the loss is that of a trained model."""
    alarms = alone.client_state_wrong(records, alone.EARLIER)
    return alarms | first_loss_higher(records)


picture = alone.distances
