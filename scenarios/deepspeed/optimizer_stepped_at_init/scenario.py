"""ZeRO steps the optimizer during initialization, so Adam counts one step too many.

Adam's moments start at 0, and Adam corrects them by a factor that depends on its count of steps.
The count is one too high from the start, so the first update is 0.744 times the right one, and the
next ones are too small as well. By Adam's formula the factor is within 2 % of 1 from the eighth
step on, but the weights stay behind. Stages 1 and 2 of ZeRO show it here; the code of stage 3 and
of BF16_Optimizer has the same step. Without ZeRO the first update is right. The loss falls, and all
ranks agree.

Root cause: to allocate the optimizer's state before the training, ZeRO set all gradients to zero
and called the optimizer's ``step``. The moments are still zero after that, but the count is 1. The
fix leaves that step out, and lets the first real step create the state.
"""

from __future__ import annotations

from functools import partial

from harness.bugs import api
from scenarios.deepspeed import _stepped_at_init as init

TOLERANCE = 1e-3
"""How far weights may be from plain torch's, in learning rates: Adam's step is about one. Rounding
in fp32 moves them by 1e-5."""


def ahead(step: api.Record) -> bool:
    """Adam's count is one ahead, and the weights are those of an Adam that took an empty step."""
    return init.ahead(step, TOLERANCE)


oracle = init.Ahead(ahead, TOLERANCE)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Adam; plain torch trains two copies, one of them a step ahead."""
    import torch

    from scenarios.common import linear
    from scenarios.deepspeed import _adamw_reference as reference
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    make = partial(torch.optim.Adam, lr=p.lr)
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            make,
            train_micro_batch_size_per_gpu=p.batch,
            zero_allow_untested_optimizer=True,
            zero_optimization={"stage": p.zero_stage},
        )
    beside = reference.Beside(engine.module, make)
    data = linear.batches(ctx, engine.module, ctx.world_size * p.batch, distance=5.0, noise=0.1)
    for step, rows in zip(api.each(p.steps), data, strict=False):
        beside.step(rows)
        loss = regression.step(ctx, engine, rows)
        weights = dict(engine.module.named_parameters())
        ctx.record("step", step, loss=loss, **beside.facts(engine.optimizer, weights, p.lr))
