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

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import unreduced


@dataclass
class Params(api.Knobs):
    method: str = api.knob(
        "training_step",
        choices=("training_step", "compute_loss", "forward"),
        about="of the LightningModule that the loop calls",
    )
    rows: int = api.knob(8, least=2, multiple=2, unit="rows", about="in a global batch")
    steps: int = api.knob(4, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="learning rate of SGD")


SCENARIO = api.Scenario(
    report=(
        "Calls to LightningModule's `*_step` methods in Fabric bypasses DDP wrapper",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/16856",
    ),
    fix="https://github.com/Lightning-AI/pytorch-lightning/pull/17424",
    symptom="calling methods other than forward, like training_step, bypasses the DDP wrapper",
    trigger="Fabric with DDP, and a loop that calls a method of the model other than forward",
    remedy="call the model itself",
    pins={"pytorch-lightning": "2.0.1"},
    harm="ruins training",
    visibility="silent",
    settings={
        "ranks": api.above(1),
        "code": api.by_code("a loop with Fabric calls a method of the model other than forward"),
    },
    seen={"lightning.fabric.fabric.Fabric or lightning_fabric.fabric.Fabric": api.NEEDED},
    files=("lightning_fabric/wrappers.py",),
    releases="pytorch-lightning>=1.9",  # the first with lightning_fabric
    absent=(
        api.Absent(
            "pytorch-lightning<1.7",
            "the wrapper of LightningLite, which became Fabric, has no other method than forward",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.6.5/pytorch_lightning/lite/wrappers.py",
        ),
    ),
    present=(
        api.Present(
            "pytorch-lightning>=1.7,<1.9",
            "the wrapper of LightningLite, which became Fabric, passes on any other method",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/lightning_lite/wrappers.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("2.0.2"),
        "control": api.control(
            "2.0.1, the loop calls the model itself", params={"method": "forward"}
        ),
        "fixed_other_name": api.expect_symptom(
            "2.0.2",
            about="2.0.2, a method whose name Lightning does not know: it only warns",
            params={"method": "compute_loss"},
        ),
    },
)
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
