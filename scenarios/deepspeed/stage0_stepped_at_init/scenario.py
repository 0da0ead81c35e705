"""At ZeRO stage 0 in fp16 or bf16, DeepSpeed steps Adam during initialization: one step too many.

Adam's moments start at 0, and Adam corrects them by a factor that depends on its count of steps.
The count is one too high from the start, so the first update is 0.744 times the right one, and the
next ten are too small as well. By Adam's formula the factor is within 2 % of 1 from the eighth step
on, but the weights stay behind. AdamW also decays the fp32 master weights once. The loss falls, and
all ranks agree. In fp32, and at stages 1 to 3, the first update is right.

Root cause: to allocate the optimizer's state before the training, the optimizers of fp16 and bf16
without ZeRO set all gradients to zero and call the optimizer's ``step``. The moments are still zero
after that, but the count is 1. ZeRO did the same until 0.13.1 (``optimizer_stepped_at_init``), and
the same step was left in place here.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.deepspeed import _stepped_at_init as init

TOLERANCE = 0.1
"""How far masters may be from plain torch's in fp32, in learning rates: Adam's step is about one.
Rounding of the gradients to bf16 moves them by up to 0.04 here, and the bug by 0.256 and more."""


def not_stepped(function: object) -> api.Edits:
    """Leave out the step that allocates the state."""
    yield from left_out(calling(function, "step", of="optimizer"))


def ahead(step: api.Record) -> bool:
    """Adam's count is one ahead, and the masters are those of an Adam that took an empty step."""
    return init.ahead(step, TOLERANCE)


oracle = init.Ahead(ahead, TOLERANCE, weights="masters")


def plan(at: api.Position) -> api.Plan:
    """The class of DeepSpeed's optimizer, and each step."""
    return {"made": api.Kind({"optimizer": api.alike(api.LINE)}), **oracle.plan(at)}


def run(ctx: api.Context) -> None:
    """Fit a linear map with Adam; plain torch trains two copies, one of them a step ahead."""
    import torch

    from scenarios.common import linear
    from scenarios.deepspeed import _adamw_reference as reference
    from scenarios.deepspeed import _masters as masters
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    make = partial(torch.optim.Adam, lr=p.lr)
    low: dict[str, Any] = {}
    if p.precision != "fp32":
        low = {p.precision: {"enabled": True}}
    if p.precision == "fp16":
        low["fp16"]["loss_scale"] = 128
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            make,
            train_micro_batch_size_per_gpu=p.batch,
            zero_allow_untested_optimizer=True,
            zero_optimization={"stage": p.zero_stage},
            **low,
        )
    ctx.record("made", optimizer=type(engine.optimizer).__name__)
    module = copy.deepcopy(engine.module).float()
    beside = reference.Beside(module, make)
    data = linear.batches(ctx, module, ctx.world_size * p.batch, distance=5.0, noise=0.1)
    for step, rows in zip(api.each(p.steps), data, strict=False):
        beside.step(rows)
        loss = regression.step(ctx, engine, rows)
        weights = masters.full(engine)
        ctx.record("step", step, loss=loss, **beside.facts(engine.optimizer, weights, p.lr))


def exercised(records: api.Records) -> api.Exercise:
    """Adam was made for 16 bits, without ZeRO."""
    p, optimizer = records.params, records.of("made", 0)[0]["optimizer"]
    text = f"{optimizer} made Adam's state, in {p.precision} at ZeRO stage {p.zero_stage}"
    return api.Exercise.of(optimizer.startswith("FP16_"), text)
