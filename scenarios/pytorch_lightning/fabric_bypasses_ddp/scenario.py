"""Fabric with DDP: model.training_step() bypasses DDP, so each rank trains its own model.

This affects users who move their LightningModule from the Trainer to their own loop with Fabric,
and call ``model.training_step(batch, number)`` on the model that ``fabric.setup`` returned. No
gradient is averaged, and the replicas drift apart from the first step on. Each rank's loss falls,
no warning appears, and a checkpoint of the first rank has seen the data of the first rank alone.

Root cause: DDP reduces the gradients of a backward pass only if its own forward ran before. The
wrapper of Fabric passes the call of any other method on to the original module, past DDP. The fix
sends Lightning's four step methods through DDP's forward. For any other method 2.0.2 only warns.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import unreduced

oracle = unreduced.Unreduced(
    unreduced.Step, unreduced.own_alone, also=lambda at: {"wrapped": api.Kind({"ddp": api.FLAG})}
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Fabric on two ranks' parts of each global batch."""
    from scenarios.pytorch_lightning.fabric_bypasses_ddp import training

    training.fit(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """DDP wrapped the model, and the loop called another method than forward."""
    wrapped, method = records.of("wrapped", 0)[0]["ddp"], records.params.method
    text = f"{'' if wrapped else 'no '}DDP around the model; the loop calls {method}"
    called = api.Exercise.of(wrapped and method != "forward", text)
    return called & unreduced.parted(records)
