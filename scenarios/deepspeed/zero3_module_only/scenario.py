"""At ZeRO stage 3, load_checkpoint(load_module_only=True) loads no weight.

``load_module_only=True`` is documented to load "only the model weights from the checkpoint", as for
a warm start. At stage 3 the call returns the path and the ``client_state`` of the checkpoint, and
raises and logs nothing. But all weights stay what they were before. So a fine-tuning starts from
the initialisation, and an evaluation is that of an untrained model.

Root cause: at stage 3 a model's file in a checkpoint has placeholders for the weights. The weights
are in the optimizers' shards. The engine reads these if ``load_optimizer_states`` is False, where
it puts the weights together, or if it loads the optimizer as well. ``load_module_only`` alone, with
the default ``load_optimizer_states=True``, does neither: the first condition does not look at it,
and the second excludes it since 0.13.0. Up to 0.12.6 the option loaded the optimizer's state, too,
and so the weights. That change mended ``module_only_masters``.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.deepspeed import _loaded_alone as alone


def module_alone_too(function: Any) -> api.Edits:
    """The weights are put together also if the module alone is loaded."""
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.UnaryOperation(m.Not(), m.Name("load_optimizer_states"))):
        yield node, cst.parse_expression("(not load_optimizer_states or load_module_only)")


plan = alone.plan


def run(ctx: api.Context) -> None:
    """Train and save; or load the weights alone."""
    how = {"load_module_only": True, "load_optimizer_states": ctx.params.optimizer}
    alone.run(ctx, alone.LATER, **how)


def detect(records: api.Records) -> api.Finding | None:
    """No weight was loaded: all are those from before the load."""
    return alone.otherwise(records, alone.LATER, alone.FRESH, "nothing was loaded")


def exercised(records: api.Records) -> api.Exercise:
    """The stage was 3, load_optimizer_states was True, and the saved weights were other ones."""
    how = f"load_optimizer_states was {records.params.optimizer}"
    return (
        alone.at_stage_3(records)
        & api.Exercise.of(records.params.optimizer, how)
        & alone.differed(records, alone.LATER, alone.FRESH)
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The client_state is that of the checkpoint."""
    return alone.client_state_wrong(records, alone.LATER)


picture = alone.distances
