"""Gradient clipping clips nothing, and raises small gradients to the threshold.

In DeepSpeed 0.13.2, fp32 without ZeRO, the factor that clipping multiplies all gradients with is
the larger of 1 and threshold / norm, where it has to be the smaller. A gradient above the threshold
goes through as it is, and one below it is scaled up to it: near the optimum, where the gradients
are small, every step has the length lr * threshold, and the loss stops falling.

Nothing failed; a maintainer found it, and users asked how it went unnoticed. Root cause: a change
to save waiting for the device wrote ``if clip_coef < 1`` as a maximum of tensors (DeepSpeed PR
4915). The fix is the minimum. ZeRO, fp16 and bf16 clip elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import NUMBER, alike, exactly
from harness.knobs import Knobs, knob
from harness.spec import (
    Context,
    Exercise,
    Finding,
    Position,
    Record,
    Records,
    Scenario,
    affected,
    unaffected,
)
from scenarios.common import applied, blind


@dataclass
class Params(Knobs):
    clipping: float = knob(1.0, least=0, about="the greatest gradient norm; 0 for any")
    lr: float = knob(0.5, above=0, about="of SGD")
    steps: int = knob(60, least=1, about="of training")
    batch: int = knob(32, least=1, unit="rows", about="of a rank in a step")
    distance: float = knob(20.0, above=0, about="of the weights from the optimum, at the start")
    noise: float = knob(0.1, least=0, about="the deviation of the labels")


SCENARIO = Scenario(
    report=("Fix gradient clipping", "https://github.com/deepspeedai/DeepSpeed/pull/5150"),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/5150 (0.13.3)",
    symptom="the gradient clipping API doesn't apply the coefficient correctly",
    trigger="gradient_clipping in fp32 without ZeRO",
    remedy="use deepspeed 0.13.3 or later, or 0.13.1",
    pins={"deepspeed": "0.13.2"},
    goes_wrong="gradients",
    files=("deepspeed/runtime/utils.py",),
    ranks=2,
    variants={
        "buggy": affected(),
        "fixed": unaffected("0.13.3"),
        "before": unaffected("0.13.1"),
        "control": unaffected(
            about="0.13.2 without clipping", params={"clipping": 0.0}, triggers=False
        ),
    },
)
picture = applied.norms


def plan(at: Position) -> Plan:
    """Each step, with what it applied: on replicas, and so the same on all ranks."""
    facts = {"loss": NUMBER, "clipping": exactly(at.params.clipping), **applied.shapes(1)}
    same = {name: alike(shape) for name, shape in facts.items()}
    return {"step": Kind(same, each(at.params.steps))}


def run(ctx: Context) -> None:
    """Fit a linear layer with SGD; compare each step with plain torch's gradient."""
    import torch

    from scenarios.common import regression

    p = ctx.params
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            partial(torch.optim.SGD, lr=p.lr),
            gradient_clipping=p.clipping,
            train_micro_batch_size_per_gpu=p.batch,
            zero_optimization={"stage": 0},
        )
    model, rows = engine.module, ctx.world_size * p.batch
    data = regression.batches(ctx, model, rows, p.distance, p.noise)
    for step in range(1, p.steps + 1):
        inputs, labels = next(data)
        before = applied.copied(model, torch.float64)
        plain = applied.plainly(regression.of(model), before, [(inputs, labels)])
        mine = slice(ctx.rank * p.batch, (ctx.rank + 1) * p.batch)
        engine.backward(regression.loss(engine(inputs[mine]), labels[mine]))
        engine.step()
        facts = applied.facts(plain, before, applied.copied(model), p.lr)
        ctx.record("step", step, loss=plain.loss, clipping=p.clipping, **facts)


def _wanted(step: Record) -> float:
    """How much of the gradient should have been applied."""
    return float(min(1.0, step["clipping"] / step["gradient"])) if step["clipping"] else 1.0


def detect(records: Records) -> Finding | None:
    """Large gradients were applied as they were, and small ones with the norm of the threshold."""
    steps, odd = records.of("step"), list(applied.loss_wrong(records))
    if odd:
        return Finding(odd[0], documented=False)
    wrong = [step for step in steps if not applied.times(step, _wanted(step))]
    if not wrong:
        return None
    whole = [s for s in wrong if s["gradient"] > s["clipping"] and applied.times(s, 1)]
    raised = [s for s in wrong if s["gradient"] < s["clipping"] and _at_threshold(s)]
    lines = [
        *(f"not clipped to {s['clipping']:g}: {applied.told(s)}" for s in whole[:1]),
        *(f"raised to {s['clipping']:g}: {applied.told(s)}" for s in raised[-1:]),
        f"of {len(steps)} steps of {len(records.ranks)} ranks {len(wrong)} are wrong: {len(whole)} "
        f"not clipped, {len(raised)} raised to the threshold",
    ]
    if not (whole or raised):
        lines = [applied.told(wrong[0]), *lines]
    documented = bool(whole and raised) and all(applied.times(s, _larger(s)) for s in steps)
    return applied.finding(wrong, lines, _wanted, documented=documented)


def _larger(step: Record) -> float:
    """How much of the gradient the larger factor applies."""
    return float(max(1.0, step["clipping"] / step["gradient"]))


def _at_threshold(step: Record) -> bool:
    return applied.times(step, step["clipping"] / step["gradient"])


def exercised(records: Records) -> Exercise:
    """There were gradients above the threshold, which are to be clipped, and gradients below it."""
    steps = records.of("step", 0)
    large = sum(0 < step["clipping"] < step["gradient"] for step in steps)
    small = sum(step["gradient"] < step["clipping"] for step in steps)
    told = f"{large} gradients were above the threshold, and {small} below it, of {len(steps)}"
    return Exercise.of(bool(large and small), told, told)


def insufficient_checks(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    return blind.loss_ends_higher(records) | applied.same_direction(records)
