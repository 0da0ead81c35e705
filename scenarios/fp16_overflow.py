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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from harness.records import Record, Records
from harness.spec import Finding, Outcome, Scenario, Variant

if TYPE_CHECKING:
    from harness.detectors.headroom import Headroom
    from harness.rank import Context

LIMIT = 65504.0
"""The largest finite fp16 number."""

TEXT = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
"""What DeepSpeed raises, as a builtin Exception; the same from 0.12.6 to 0.19.8."""


@dataclass
class Params:
    """The knobs; the defaults are those of the figures in docs/scenarios/fp16_overflow.md."""

    precision: str = "fp16"
    """``fp16`` or ``bf16``."""
    lr: float = 8e-2
    """The top of the ramp. At 5e-3 nothing comes near the limit."""
    first_lr: float = 1e-4
    """Where the ramp begins."""
    ramp: int = 150
    """Steps from ``first_lr`` to ``lr`` (DeepSpeed's OneCycle); as many lead down again."""
    steps: int = 170
    """The most steps that are taken."""
    sequences: int = 8
    """Sequences a step, over all ranks."""
    zero_stage: int = 1
    gradient_clipping: float = 1.0
    initial_scale_power: int = 12
    """The loss scale begins at 2 to the power of this."""
    min_loss_scale: float = 1.0
    hysteresis: int = 2
    """The overflow, in a row or not, that is the first to lower the scale."""
    consecutive_hysteresis: bool = False
    """Whether a finite step has the count of that begin anew."""
    loss_scale_window: int = 500
    """Finite steps after which the scale is doubled."""
    warn_below: float = 3.0
    """Bits of headroom below which the detector warns."""

    def __post_init__(self) -> None:
        if self.precision not in ("fp16", "bf16"):
            raise ValueError(f"scenario.precision={self.precision}: choose fp16 or bf16")
        if self.zero_stage not in (0, 1, 2):
            raise ValueError(f"scenario.zero_stage={self.zero_stage}: choose 0, 1 or 2")
        if not 0 < self.first_lr <= self.lr < math.inf:
            raise ValueError("scenario.first_lr must be above 0, and scenario.lr no less; finite")
        if min(self.steps, self.ramp, self.hysteresis, self.loss_scale_window) < 1:
            raise ValueError(
                "scenario.steps, ramp, hysteresis and loss_scale_window must be at least 1"
            )
        if self.sequences < 2 or self.sequences % 2:
            raise ValueError("scenario.sequences must be an even number: each rank gets as many")
        if not 0 < self.min_loss_scale <= 2.0**self.initial_scale_power:
            raise ValueError("scenario.min_loss_scale must be above 0 and no more than the first")
        if not (0 <= self.gradient_clipping < math.inf and math.isfinite(self.warn_below)):
            raise ValueError("scenario.gradient_clipping must be at least 0; all must be finite")


SCENARIO = Scenario(
    title="fp16 training overflows until the loss scale is at its minimum, and stops",
    report=(
        "DeepSpeed Gradient overflow with fp16 enabled (DeepSpeed 0.13.3; the run's own log says "
        "0.13.2)",
    ),
    fix="none in any release: train in bf16",
    symptom=f"loss nan at step 444; at step 456 Exception: {TEXT}",
    trigger="dynamic loss scaling in fp16, once an activation passes 65504",
    remedy="train in bf16; watch the headroom (harness.detectors.headroom)",
    pins={"deepspeed": "0.13.3"},
    date="2024-03-15",
    ranks=2,
    variants={
        "buggy": Variant("fp16, as the report", Outcome.SYMPTOM),
        "fixed": Variant("bf16: same seed, data and schedule", Outcome.CLEAN,
            params={"precision": "bf16"},
        ),
        "control": Variant(
            "fp16 at a sixteenth of the learning rate: the logits stay small", Outcome.CLEAN,
            params={"lr": 5e-3}, triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Train, and write down each step, until the steps are done or DeepSpeed gives up."""
    from harness.detectors.headroom import Headroom

    headroom = Headroom(LIMIT, warn_below=ctx.params.warn_below)
    with ctx.phase("init"):
        engine = _engine(ctx, headroom)
    with ctx.phase("steps"):
        _train(ctx, engine, headroom)


def _engine(ctx: Context, headroom: Headroom) -> Any:
    """DeepSpeed's own engine, scheduler and ZeRO optimizer over the model that is watched."""
    import deepspeed
    import torch

    from scenarios.workloads.byte_gpt import ByteGPT, Shape

    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    torch.manual_seed(ctx.seed)
    model = ByteGPT(Shape(), headroom.observe)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=ctx.params.lr, weight_decay=1e-2),
        config=_config(ctx),
    )
    return engine


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
        "scheduler": {
            "type": "OneCycle",
            "params": {
                "cycle_min_lr": params.first_lr,
                "cycle_max_lr": params.lr,
                "cycle_first_step_size": params.ramp,
            },
        },
        "steps_per_print": 1_000_000,
        **(_accumulation() if params.precision == "bf16" and params.zero_stage == 0 else {}),
    }


def _accumulation() -> dict[str, Any]:
    """What bf16 at stage 0 accumulates gradients in: old releases refuse bf16, new ones fp32."""
    from deepspeed.runtime import constants

    takes_bf16 = hasattr(constants, "DDP_BFLOAT16")
    return {} if takes_bf16 else {"data_types": {"grad_accum_dtype": "fp32"}}


def _train(ctx: Context, engine: Any, headroom: Headroom) -> None:
    import torch

    from scenarios.workloads import corpus
    from scenarios.workloads.byte_gpt import Shape

    text = corpus.standard_library()
    ctx.record(
        "setup",
        precision=ctx.params.precision,
        zero_stage=ctx.params.zero_stage,
        steps=ctx.params.steps,
        warn_below=ctx.params.warn_below,
        corpus={"sha256": text.sha256, "bytes": len(text.data), "files": text.files},
        scaler=_scaler(engine.optimizer),
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    for step in range(1, ctx.params.steps + 1):
        # All ranks draw the whole batch, so that it does not depend on how many they are.
        batch = text.batch(ctx.params.sequences, Shape().sequence + 1, generator)
        loss = engine(batch.chunk(ctx.world_size)[ctx.rank].to(ctx.device))
        engine.backward(loss)
        raised = _step(engine)
        norm = engine.get_global_grad_norm()
        readings = headroom.step()
        ctx.record(
            "step",
            step,
            loss=_json(float(loss.detach())),
            grad_norm=None if norm is None else _json(float(norm)),
            loss_scale=_loss_scale(engine.optimizer),
            skipped=engine.skipped_steps,
            lr=engine.get_lr()[0],
            largest={reading.name: _json(reading.largest) for reading in readings},
            headroom={reading.name: _json(round(reading.bits, 3)) for reading in readings},
        )
        if raised is not None:
            ctx.record("exception", step, type=type(raised).__name__, text=str(raised))
            return


def _step(engine: Any) -> Exception | None:
    """The documented exception, if that is what the step ends with; any other goes on up."""
    try:
        engine.step()
    except Exception as error:
        if type(error) is not Exception or str(error) != TEXT:
            raise
        return error
    return None


def _scaler(optimizer: Any) -> dict[str, Any]:
    """The loss scaler's knobs as upstream holds them; its three classes name them differently."""
    holders = [
        getattr(optimizer, "loss_scaler", None),
        getattr(optimizer, "loss_scale_config", None),
        optimizer,
    ]
    holder = next(h for h in holders if h is not None)

    def knob(*names: str) -> Any:
        return next((getattr(holder, name) for name in names if hasattr(holder, name)), None)

    return {
        "optimizer": type(optimizer).__name__,
        # Before 0.8 a dynamic scaler did not say so; only it has a window.
        "dynamic": bool(knob("dynamic", "dynamic_loss_scale", "scale_window")),
        "initial": _loss_scale(optimizer),
        "minimum": knob("min_scale", "min_loss_scale"),
        "hysteresis": knob("delayed_shift"),
        "consecutive": knob("consecutive_hysteresis"),
        "window": knob("scale_window"),
    }


def _loss_scale(optimizer: Any) -> float:
    """The scale of the loss; BF16_Optimizer has none."""
    return float(getattr(optimizer, "loss_scale", 1.0))


def _json(value: float) -> float | str:
    """A number that JSON can hold: nan and inf become their names, which float() reads."""
    return value if math.isfinite(value) else str(value)


def detect(records: Records) -> Finding | None:
    """The loss is not finite, and so many skipped steps later the documented exception ends it."""
    broken, raised = first_broken(records), exceptions(records)
    if broken is None and not raised:
        return None
    told = told_of(records)
    doubts = list(_doubts(records))
    lines = [*told, *doubts] if doubts else told
    overflow = first_overflow(records)
    return Finding(
        message="\n".join(lines),
        step=broken,
        parameters=(overflow[1],) if overflow else (),
        ranks=tuple(raised),
        magnitude=float(_skipped(records)),
        documented=not doubts,
    )


def told_of(records: Records) -> list[str]:
    """What happened, in the order in which it did."""
    lines, broken, overflow = [], first_broken(records), first_overflow(records)
    if overflow:
        lines.append(f"step {overflow[0]}: {overflow[1]} passes {LIMIT:g}; {_warning(records)}")
    if broken is not None:
        lines.append(f"step {broken}: the loss is not finite")
    for raised in list(exceptions(records).values())[:1]:
        lines.append(
            f"step {raised['step']}, after {_skipped(records)} skipped steps: "
            f"{raised['type']}: {raised['text']}"
        )
    return lines


def _doubts(records: Records) -> Iterator[str]:
    """Whatever is not as the report has it."""
    broken, raised = first_broken(records), exceptions(records)
    if not raised:
        yield f"{_skipped(records)} steps were skipped, but nothing was raised"
        return
    if set(raised) != set(records.ranks):
        yield f"raised on ranks {sorted(raised)} alone"
    if len({(r["step"], r["type"], r["text"]) for r in raised.values()}) > 1:
        yield "the ranks do not agree on what was raised, or when"
    for rank, r in raised.items():
        if (r["type"], r["text"]) != ("Exception", TEXT):
            yield f"rank {rank}: not the documented exception but {r['type']}: {r['text']}"
    last = max(r["step"] for r in raised.values())
    if broken is None or broken >= last:
        yield "no loss before that was other than finite"
    overflow = first_overflow(records)
    if overflow is None or (broken is not None and overflow[0] > broken):
        yield "none of the watched tensors had overflowed"
    for rank in records.ranks:
        steps, setup = records.of("step", rank), records.one("setup", rank)
        dynamic = setup is not None and setup["scaler"]["dynamic"]
        expected = expected_skips(steps, setup["scaler"]) if setup and dynamic else None
        if not steps or steps[-1]["skipped"] != expected:
            skipped = steps[-1]["skipped"] if steps else 0
            yield f"rank {rank}: {skipped} skipped steps, where the loss scaler allows {expected}"


def expected_skips(steps: Sequence[Record], scaler: Mapping[str, Any]) -> int:
    """How many steps the loss scaler's rule has skipped when it raises.

    The scale is halved log2(initial / minimum) times. Before the first time hysteresis - 1
    overflows are let pass; that is all, unless a doubling of the scale (one more to halve) or, with
    consecutive hysteresis, a finite step has the hysteresis begin anew.
    """
    halvings = math.ceil(math.log2(scaler["initial"] / scaler["minimum"]))
    patience = (scaler["hysteresis"] or 1) - 1
    left, passed, skipped, scale = patience, 0, 0, scaler["initial"]
    for step in steps:
        doubled = step["loss_scale"] > scale
        overflowed = step["skipped"] > skipped
        halvings += doubled
        if doubled or (scaler["consecutive"] and not overflowed):
            left = patience
        elif overflowed and left:
            left -= 1
            passed += 1
        skipped, scale = step["skipped"], step["loss_scale"]
    return halvings + passed


def first_broken(records: Records) -> int | None:
    """The first step at which the loss of some rank is not finite."""
    return min(
        (s["step"] for s in records.of("step") if not math.isfinite(float(s["loss"]))), default=None
    )


def first_overflow(records: Records) -> tuple[int, str] | None:
    """The first step at which a watched tensor passed 65504 on some rank, and which it was."""
    over = [
        (step["step"], name)
        for step in records.of("step")
        for name, bits in step["headroom"].items()
        if float(bits) < 0
    ]
    return min(over, key=lambda found: found[0], default=None)


def exceptions(records: Records) -> dict[int, Record]:
    """What each rank recorded of the exception that ended it; empty where none was raised."""
    return {record["rank"]: record for record in records.of("exception")}


def first_warning(records: Records) -> int | None:
    """The first step at which the headroom of a watched tensor was below the threshold."""
    setup = records.one("setup")
    if setup is None:
        return None
    low = (s["step"] for s in records.of("step") if _least(s) < setup["warn_below"])
    return min(low, default=None)


def _least(step: Record) -> float:
    return min(map(float, step["headroom"].values()), default=math.inf)


def _skipped(records: Records) -> int:
    return max((step["skipped"] for step in records.of("step")), default=0)


def _warning(records: Records) -> str:
    warned, broken, setup = first_warning(records), first_broken(records), records.one("setup")
    if warned is None or setup is None:
        return "the headroom gave no warning"
    text = f"the headroom was below {setup['warn_below']:g} bits from step {warned} on"
    return text if broken is None else f"{text}, {broken - warned} steps before the first nan"


def lived(records: Records) -> bool:
    """Whether every rank took all of its steps, skipped none and had a finite loss in each."""
    for rank in records.ranks:
        steps, setup = records.of("step", rank), records.one("setup", rank)
        if setup is None or len(steps) != setup["steps"] or steps[-1]["skipped"]:
            return False
    return first_broken(records) is None


def exercised(records: Records) -> str | None:
    """A watched tensor passed 65504, and the training lived to its end."""
    overflow = first_overflow(records)
    if overflow is None or not lived(records):
        return None
    steps = records.of("step", 0)
    largest = max(
        (float(value), name)
        for step in records.of("step")
        for name, value in step["largest"].items()
    )
    return (
        f"{largest[1]} passed {LIMIT:g} at step {overflow[0]} and reached {largest[0]:.3g}; all "
        f"{len(steps)} steps were taken, the loss went from {float(steps[0]['loss']):.2f} to "
        f"{float(steps[-1]['loss']):.2f}; {_warning(records)}"
    )


SETTLED = 40
"""Steps after which a sudden change would be one; before, the model learns the first things."""


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not warn of this bug, and whether it fired before the first nan."""
    broken = first_broken(records) or math.inf
    sound = [step for step in records.of("step") if step["step"] < broken]
    by_step: dict[int, list[float]] = {}
    for step in sound:
        by_step.setdefault(step["step"], []).append(float(step["loss"]))
    losses = [mean(values) for values in by_step.values()]
    norms = [float(step["grad_norm"] or 0) for step in sound if not step["rank"]]
    times = range(SETTLED, len(losses) + 1)
    return {
        "the loss rises by 0.5 (mean of ten steps)": any(
            mean(losses[n - 10 : n]) - mean(losses[n - 20 : n - 10]) > 0.5 for n in times
        ),
        "the gradient norm doubles (median of ten steps)": any(
            median(norms[n - 10 : n]) > 2 * median(norms[n - 20 : n - 10]) for n in times
        ),
        "one gradient norm is twice the last twenty": any(
            norms[n - 1] > 2 * max(norms[n - 21 : n - 1]) for n in times
        ),
    }


FIRST_LOSS = 0.05
"""How far (nats) the losses of the first step, before any update, may be apart between precisions;
measured: below 1e-3."""


def agree(trials: Mapping[str, Records]) -> Iterator[str]:
    """The variants must have begun alike, and the control must have stayed far from the limit."""
    setups = {name: records.one("setup") for name, records in trials.items()}
    if len({setup["corpus"]["sha256"] for setup in setups.values() if setup}) > 1:
        yield "the variants did not train on the same text"
    firsts = [float(step["loss"]) for r in trials.values() for step in r.of("step", 0)[:1]]
    if firsts and max(firsts) - min(firsts) > FIRST_LOSS:
        yield f"the variants did not begin alike: losses {firsts} in the first step"
    if "control" in trials:
        warned = first_warning(trials["control"])
        if warned is not None:
            yield f"control: the headroom went below the threshold at step {warned}"
