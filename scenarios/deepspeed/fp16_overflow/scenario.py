"""Training in fp16 overflows at every step until the loss scale is at its minimum, and stops.

Met in the training of a GPT of 1.87 billion parameters with DeepSpeed 0.13.3 over 8 GPUs. For 443
steps (14 hours) everything looked healthy: the loss lay flat at 4.4, the gradient norm between 1.3
and 2.1, the loss scale at 4096. At step 444 the loss was nan. DeepSpeed skipped that step and
halved the scale, and again, as if smaller steps could help; at step 456 it gave up with
``Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.``

Root cause: the largest fp16 number is 65504. As a learning rate that is still being raised makes
the weights grow, so does QK^T, the product of queries and keys, which is computed in fp16 and
scaled down only afterwards. Once it does not fit it is inf, the softmax of inf is nan, and nan
gradients are what the loss scaler takes for gradients scaled too high. It lowers the scale, which
changes nothing in the forward pass, log2(initial / minimum) times, after hysteresis - 1 overflows
that it lets pass. The next one raises.

No release fixes this: it is what fp16 is. The fixed variant trains in bf16, which has 8 bits of
exponent where fp16 has 5: the same product passes 65504 there, too, and nothing happens.

Here a small GPT trained at a high learning rate gets there in about a hundred steps. Nothing is
injected: the logits grow by training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.facts.plan import Plan
from harness.knobs import Knobs, knob
from harness.spec import Context, Finding, Position, Records, Scenario, affected, unaffected
from scenarios.deepspeed.fp16_overflow import first_steps as begun
from scenarios.deepspeed.fp16_overflow import loss_scale


@dataclass
class Params(Knobs):
    precision: str = knob("fp16", choices=("fp16", "bf16"), about="of weights and activations")
    lr: float = knob(
        8e-2, above=0, about="the top of the ramp; at 5e-3 nothing comes near the limit"
    )
    first_lr: float = knob(1e-4, above=0, about="where the ramp begins; at most lr")
    ramp: int = knob(
        150, least=1, unit="steps", about="from first_lr to lr (OneCycle); as many lead down again"
    )
    steps: int = knob(170, least=1, about="the most that are taken")
    sequences: int = knob(8, least=2, multiple=2, about="in a step, over all ranks")
    zero_stage: int = knob(1, choices=(0, 1, 2), about="of ZeRO")
    gradient_clipping: float = knob(1.0, least=0, about="the greatest gradient norm, 0 for any")
    initial_scale_power: int = knob(12, about="the loss scale begins at 2 to the power of this")
    min_loss_scale: float = knob(1.0, above=0, about="the least loss scale; at most the first")
    hysteresis: int = knob(
        2, least=1, about="the overflow, in a row or not, that is the first to lower the scale"
    )
    consecutive_hysteresis: bool = knob(
        False, about="whether a finite step has the count of hysteresis begin anew"
    )
    loss_scale_window: int = knob(
        500, least=1, unit="finite steps", about="after which the scale is doubled"
    )
    warn_below: float = knob(3.0, unit="bits of headroom", about="where the detector warns")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_lr > self.lr:
            raise ValueError(f"scenario.first_lr={self.first_lr}: must be at most scenario.lr")
        if math.log2(self.min_loss_scale) > self.initial_scale_power:
            raise ValueError(
                f"scenario.min_loss_scale={self.min_loss_scale}: must be at most the first, which "
                f"is 2 to the power of {self.initial_scale_power}"
            )


SCENARIO = Scenario(
    report=(
        "DeepSpeed Gradient overflow with fp16 enabled (DeepSpeed 0.13.3; the run's own log says "
        "0.13.2)",
    ),
    fix="none in any release: train in bf16",
    symptom=f"loss nan at step 444; at step 456 Exception: {loss_scale.GIVEN_UP}",
    trigger="dynamic loss scaling in fp16, once an activation passes 65504",
    remedy="train in bf16; watch the headroom (harness.detectors.headroom)",
    pins={"deepspeed": "0.13.3"},
    goes_wrong="precision",
    files=("deepspeed/runtime/fp16/loss_scaler.py",),
    ranks=2,
    variants={
        "buggy": affected(about="fp16, as in the report"),
        "fixed": unaffected(
            about="bf16: same seed, data and schedule", params={"precision": "bf16"}
        ),
        "control": unaffected(
            about="fp16 at a sixteenth of the learning rate: the logits stay small",
            params={"lr": 5e-3},
            triggers=False,
        ),
    },
)


def plan(at: Position) -> Plan:
    """The scaler's knobs; each step, unless the documented exception ends them."""
    return loss_scale.plan(at.params)


def run(ctx: Context) -> None:
    """Train, and write down each step, until the steps are done or DeepSpeed gives up."""
    from harness.detectors.headroom import Headroom
    from scenarios.deepspeed.fp16_overflow import byte_gpt, corpus

    params = ctx.params
    headroom = Headroom(warn_below=params.warn_below)
    with ctx.phase("init"):
        engine = byte_gpt.engine(ctx, params.lr, _config(ctx), headroom.observe)
    with ctx.phase("steps"):
        text = corpus.standard_library()
        optimizer = partial(byte_gpt.optimizer, lr=params.lr)
        first = begun.Watch(engine, optimizer, params.gradient_clipping)
        watch = loss_scale.Watch(
            ctx,
            engine,
            headroom,
            first,
            precision=params.precision,
            zero_stage=params.zero_stage,
            steps=params.steps,
            warn_below=params.warn_below,
            corpus=text.facts,
            rates={"first": params.first_lr, "top": params.lr, "ramp": params.ramp},
        )
        batches = text.batches(ctx, params.sequences, byte_gpt.Shape().sequence + 1)
        for step in range(1, params.steps + 1):
            batch = next(batches)
            watch.begin(step, batch)
            loss = engine(batch)
            engine.backward(loss)
            if not watch.step(step, loss):
                return


def _config(ctx: Context) -> dict[str, Any]:
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


def detect(records: Records) -> Finding | None:
    """The loss is not finite, and so many skipped steps later the documented exception ends it."""
    if not loss_scale.broke(records):
        return loss_scale.unwell(records)
    return loss_scale.finding(
        records,
        _doubts(records),
        ranks=tuple(loss_scale.exceptions(records)),
        magnitude=float(loss_scale.skipped(records)),
        unit="skipped steps",
    )


def _doubts(records: Records) -> Iterator[str]:
    """Whatever is not as the report has it."""
    broken, raised = loss_scale.first_broken(records), loss_scale.exceptions(records)
    if not raised:
        yield f"{loss_scale.skipped(records)} steps were skipped, but nothing was raised"
        return
    if set(raised) != set(records.ranks):
        yield f"raised on ranks {sorted(raised)} alone"
    if len({(r["step"], r["type"], r["text"]) for r in raised.values()}) > 1:
        yield "the ranks do not agree on what was raised, or when"
    for rank, r in raised.items():
        if (r["type"], r["text"]) != ("Exception", loss_scale.GIVEN_UP):
            yield f"rank {rank}: not the documented exception but {r['type']}: {r['text']}"
    if broken is None or broken >= max(r["step"] for r in raised.values()):
        yield "no loss before that was other than finite"
    for rank in records.ranks:
        steps, setup = records.of("step", rank), records.one("setup", rank)
        if setup is None or not setup["scaler"]["dynamic"]:
            yield f"rank {rank} told of no dynamic loss scaler"
            continue
        taken = steps[-1]["skipped"] if steps else 0
        allowed = loss_scale.expected_skips(steps, setup["scaler"])
        if taken != allowed:
            yield f"rank {rank}: {taken} skipped steps, where the loss scaler allows {allowed}"


exercised = loss_scale.overflowed
picture = loss_scale.pictures
insufficient_checks = loss_scale.blind
agree = loss_scale.agree
