"""Training of a small GPT in fp16, whose logits grow until they overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.bugs import api
from scenarios.deepspeed import _loss_scale as loss_scale
from scenarios.deepspeed._scaler_records import GIVEN_UP


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.first_lr > params.lr:
        raise ValueError(f"scenario.first_lr={params.first_lr}: must be at most scenario.lr")
    if math.log2(params.min_loss_scale) > params.initial_scale_power:
        raise ValueError(
            f"scenario.min_loss_scale={params.min_loss_scale}: must be at most the first, which "
            f"is 2 to the power of {params.initial_scale_power}"
        )


def config(ctx: api.Context) -> dict[str, Any]:
    """DeepSpeed's settings for the parameters."""
    params = ctx.params
    fp16 = {
        "enabled": True,
        "loss_scale": 0,  # dynamic
        "initial_scale_power": params.initial_scale_power,
        "min_loss_scale": params.min_loss_scale,
        "hysteresis": params.hysteresis,
        "consecutive_hysteresis": params.consecutive_hysteresis,
        "loss_scale_window": params.loss_scale_window,
    }
    cycle = {
        "cycle_min_lr": params.first_lr,
        "cycle_max_lr": params.lr,
        "cycle_first_step_size": params.ramp,
    }
    return {
        "train_micro_batch_size_per_gpu": params.sequences // ctx.world_size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": params.gradient_clipping,
        params.precision: fp16 if params.precision == "fp16" else {"enabled": True},
        "zero_optimization": {
            "stage": params.zero_stage,
            "reduce_bucket_size": 1_000_000,  # the default of 5e8 costs 3.5 s a step on a CPU
            "allgather_bucket_size": 1_000_000,
        },
        "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "OneCycle", "params": cycle},
        "steps_per_print": 1_000_000,
    }


def run(ctx: api.Context) -> None:
    """Train, and record each step, until all steps are done or DeepSpeed gives up."""
    from scenarios.deepspeed import _byte_gpt as byte_gpt

    with ctx.phase("init"):
        training = byte_gpt.Training(ctx, config(ctx))
    with ctx.phase("steps"):
        for step in api.each(ctx.params.steps):
            batch = training.begin(step)
            loss = training.engine(batch)
            training.engine.backward(loss)
            if not training.watch.step(step, loss):
                return


def raised(records: api.Records) -> api.Finding | None:
    """The finding that DeepSpeed gave up after the expected number of skipped steps."""
    if not loss_scale.broke(records):
        return loss_scale.unwell(records)
    return loss_scale.finding(
        records,
        _doubts(records),
        ranks=tuple(loss_scale.exceptions(records)),
        magnitude=float(loss_scale.skipped(records)),
        unit="skipped steps",
    )


def _doubts(records: api.Records) -> Iterator[str]:
    """What differs from the report."""
    broken, raised = loss_scale.first_broken(records), loss_scale.exceptions(records)
    if not raised:
        yield f"{loss_scale.skipped(records)} steps were skipped, but nothing was raised"
        return
    if set(raised) != set(records.ranks):
        yield f"raised on ranks {sorted(raised)} alone"
    if len({(r["step"], r["type"], r["text"]) for r in raised.values()}) > 1:
        yield "the ranks do not agree on what was raised, or when"
    for rank, r in raised.items():
        if (r["type"], r["text"]) != ("Exception", GIVEN_UP):
            yield f"rank {rank}: not the documented exception but {r['type']}: {r['text']}"
    if broken is None or broken >= max(r["step"] for r in raised.values()):
        yield "every loss before that was finite"
    for rank in records.ranks:
        steps, setup = records.of("step", rank), records.one("setup", rank)
        if setup is None or not setup["scaler"]["dynamic"]:
            yield f"rank {rank} has no dynamic loss scaler"
            continue
        skips = steps[-1]["skipped"] if steps else 0
        allowed = loss_scale.expected_skips(steps, setup["scaler"])
        if skips != allowed:
            yield f"rank {rank}: {skips} skipped steps, where the loss scaler allows {allowed}"
