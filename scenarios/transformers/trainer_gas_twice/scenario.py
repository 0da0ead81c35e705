"""The Trainer applies a gradient that is too small by the number of accumulation steps.

With ``gradient_accumulation_steps=4`` every update is a quarter of what it should be, with 8 an
eighth. The logged loss is right, so that the training just looks slow. It is so in transformers
5.2.0 to 5.5.3, of two months in 2026, with models of transformers and with one's own.

Root cause: accelerate's ``backward`` divides the loss by its own number of accumulation steps. The
Trainer divides by itself, or lets the model divide by the items of all micro-batches, and so must
leave accelerate's at 1. To pass ``sync_each_batch`` through, 5.2.0 gave accelerate a plugin with
``num_steps`` set to the Trainer's. The loss is logged from before ``backward``.

The report of April 2026 has this cause, but another symptom: under DeepSpeed, where accelerate does
not divide, gradients were not averaged. Of this one no report is known; the fix sets ``num_steps``
to 1 and mends both. docs/reports has one that needs nothing of this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import COUNT, NUMBER, SIZE, WHOLE, exactly, many
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
from scenarios.common import applied
from scenarios.transformers.trainer_gas_twice import normaliser


@dataclass
class Params(Knobs):
    accumulation: int = knob(
        4, choices=(1, 2, 4, 8), about="gradient_accumulation_steps, of 8 rows"
    )
    steps: int = knob(3, least=1, about="of training")
    lr: float = knob(0.1, above=0, about="of SGD")
    model: str = knob(
        "llama",
        choices=("llama", "plain"),
        about="llama takes the number of items as a keyword, an own plain module does not",
    )


SCENARIO = Scenario(
    report=(
        "none of this symptom; of the cause: Gradients not averaged by GAS when using DeepSpeed + "
        "model_accepts_loss_kwargs=True (Qwen3, Llama3, etc.)",
        "https://github.com/huggingface/transformers/issues/45305",
    ),
    fix="https://github.com/huggingface/transformers/pull/45349 (5.5.4)",
    symptom="with gradient_accumulation_steps=4 the gradient applied is a quarter of the right "
    "one, and the logged loss is right",
    trigger="the Trainer with gradient_accumulation_steps above 1",
    remedy="use transformers 5.5.4 or later",
    pins={"transformers": "5.2.0", "accelerate": "1.13.0"},
    goes_wrong="gradients",
    files=("transformers/trainer.py",),
    ranks=1,
    variants={
        "buggy": affected(),
        "fixed": unaffected("5.5.4"),
        "before": unaffected("5.1.0"),
        "control": unaffected(
            about="5.2.0 without accumulation", params={"accumulation": 1}, triggers=False
        ),
        "eight": affected(about="5.2.0, eight micro-batches", params={"accumulation": 8}),
        "plain": affected(about="5.2.0, a module of one's own", params={"model": "plain"}),
    },
)
picture = applied.ratios


def plan(at: Position) -> Plan:
    """Each step, with what it applied; at the end what the Trainer has logged."""
    step = {
        "tokens": many(COUNT, least=1),
        "losses": many(NUMBER, least=1),
        "aside": SIZE,
        "rows": many(WHOLE, least=1),
        **applied.shapes(),
    }
    logged = {
        "losses": many(NUMBER, at.params.steps),
        "accumulation": exactly(at.params.accumulation),
    }
    return {"step": Kind(step, each(at.params.steps)), "logged": Kind(logged)}


def run(ctx: Context) -> None:
    """Train a tiny model; compare each gradient applied with plain torch's on the same rows."""
    from scenarios.transformers.trainer_gas_twice import trainer

    p = ctx.params
    with ctx.phase("init"):
        made = trainer.trainer(
            ctx,
            trainer.MODELS[p.model](),
            p.lr,
            8 // p.accumulation,
            p.steps,
            gradient_accumulation_steps=p.accumulation,
        )
    with ctx.phase("steps"):
        made.train()
    ctx.record("logged", losses=trainer.logged(made), accumulation=p.accumulation)


def detect(records: Records) -> Finding | None:
    """Each update is the right one divided by the accumulation steps, and the logged loss right."""
    steps, logged = records.of("step"), records.one("logged")
    wrong = [step for step in steps if not applied.times(step, 1)]
    other = list(_otherwise_wrong(records))
    if logged is None or not (wrong or other):
        return None
    divided = all(applied.times(step, 1 / logged["accumulation"]) for step in steps)
    lines = [applied.told(step) for step in wrong]
    if not wrong:
        return Finding("\n".join(other), ranks=records.ranks, documented=False)
    return applied.finding(wrong, [*other, *lines], documented=divided and not other)


def _otherwise_wrong(records: Records) -> Iterator[str]:
    """What is not right, and not the size of an update either."""
    steps = records.of("step")
    rows = [row for step in steps for row in step["rows"]]
    if sorted(rows) != list(range(len(rows))):
        known = len({row for row in rows if row >= 0})
        yield f"the model was given {len(rows)} rows, and {known} different ones of the dataset"
    for step in steps:
        if step["aside"]:
            yield f"the weights changed by up to {step['aside']:.3g} before step {step['step']}"
        yield from normaliser.miscounted(step, len(steps[0]["rows"]))
    yield from (name for name, fired in insufficient_checks(records).items() if fired)


def exercised(records: Records) -> Exercise:
    """Each step of the optimizer came after as many micro-batches as were asked for: several."""
    steps, logged = records.of("step"), records.one("logged")
    asked = logged["accumulation"] if logged else 0
    counts = sorted({len(step["micro"]) for step in steps})
    told = f"{len(steps)} updates came after {', '.join(map(str, counts))} micro-batches each"
    return Exercise.of(asked > 1, "", "no accumulation was asked for") & Exercise.of(
        counts == [asked], told, f"{told}, where {asked} were asked for"
    )


def insufficient_checks(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired: the log has the loss from before."""
    logged = records.one("logged")
    told = logged["losses"] if logged else []
    right = [_is_mean(*pair) for pair in zip(told, records.of("step"), strict=False)]
    fired = not all(right) or len(right) < len(records.of("step"))
    return {"the logged loss is not the mean over all tokens": fired}


def _is_mean(told: float, step: Record) -> bool:
    return normaliser.TOKENS in normaliser.explains(told, step["losses"], step["tokens"])
