"""With gradient accumulation, the Trainer divides each update twice by the number of micro-batches.

With ``gradient_accumulation_steps=4`` every update is a quarter of the right one, with 8 an eighth.
The logged loss is right, so the training just looks slow. transformers 5.2.0 to 5.5.3, released
over two months in 2026, are affected, both with transformers' models and with your own modules.

Root cause: accelerate's ``backward`` divides the loss by its own number of accumulation steps. The
Trainer already divides the loss, or lets the model divide it by the number of tokens in all
micro-batches. So accelerate's number must be 1. To pass ``sync_each_batch`` through, 5.2.0 gave
accelerate a plugin with ``num_steps`` set to the Trainer's number. The logged loss is taken before
``backward`` divides it. The fix sets ``num_steps`` to 1.

We know of no report of this symptom. Issue 45305 of April 2026 has the same cause and the opposite
effect: under DeepSpeed accelerate does not divide, and gradients were summed, not averaged.
``report.py`` shows the bug without this project. The bug is in how these releases of transformers
call accelerate; no release of accelerate is at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness import api
from scenarios.common import applied
from scenarios.transformers import _normaliser as normaliser
from scenarios.transformers._normaliser import SUM, TOKENS


@dataclass
class Params(api.Knobs):
    accumulation: int = api.knob(
        4, choices=(1, 2, 4, 8), about="gradient_accumulation_steps: parts of the 8 rows of a step"
    )
    steps: int = api.knob(3, least=1, about="steps of training")
    lr: float = api.knob(0.1, above=0, about="learning rate of SGD")
    model: str = api.knob(
        "llama",
        choices=("llama", "plain"),
        about="the model; only the forward of llama accepts num_items_in_batch",
    )


SCENARIO = api.Scenario(
    report=(
        "no report of this symptom; one of its cause: Gradients not averaged by GAS when using "
        "DeepSpeed + model_accepts_loss_kwargs=True (Qwen3, Llama3, etc.)",
        "https://github.com/huggingface/transformers/issues/45305",
    ),
    fix="https://github.com/huggingface/transformers/pull/45349",
    symptom="with gradient_accumulation_steps=4 the gradient applied is a quarter of the right "
    "one, and the logged loss is right",
    trigger="the Trainer with gradient_accumulation_steps above 1",
    pins={"transformers": "5.2.0", "accelerate": "1.13.0"},
    decided_by=("transformers",),
    absent=(
        api.Absent(
            "transformers<5.2",
            "only 5.2.0 divides both in the Trainer and in accelerate",
            "https://github.com/huggingface/transformers/blob/v5.2.0/src/transformers/trainer.py",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={"trainer": True, "gradient_accumulation_steps": api.above(1)},
    known_upstream=False,
    files=("transformers/trainer.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.5.4"),
        "before": api.expect_clean("5.1.0"),
        "control": api.control("5.2.0 without accumulation", params={"accumulation": 1}),
        "eight": api.expect_symptom(about="5.2.0, eight micro-batches", params={"accumulation": 8}),
        "plain": api.expect_symptom(
            about="5.2.0 with a module of your own", params={"model": "plain"}
        ),
    },
)
picture = applied.ratios


def plan(at: api.Position) -> api.Plan:
    """Each step, with what it applied; at the end, what the Trainer has logged."""
    step = {
        "tokens": api.many(api.COUNT, least=1),
        "losses": api.many(api.NUMBER, least=1),
        "aside": api.SIZE,
        "rows": api.many(api.WHOLE, least=1),
        **applied.shapes(),
    }
    logged = {"losses": api.many(api.NUMBER, at.params.steps)}
    return {"step": api.Kind(step, api.each(at.params.steps)), "logged": api.Kind(logged)}


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on the same rows."""
    from scenarios.common.hf_trainer import logged
    from scenarios.transformers.trainer_gas_twice import trainer

    with ctx.phase("init"):
        made = trainer.trainer(ctx)
    with ctx.phase("steps"):
        made.train()
    ctx.record("logged", losses=logged(made))


def detect(records: api.Records) -> api.Finding | None:
    """Each update is the right one divided by the number of accumulation steps, and the logged loss
    is right."""
    count, plain = records.params.accumulation, records.params.model == "plain"
    if logged_as(records, [TOKENS, SUM]) and multiplied(records, count):
        never = "trainer_gas_never" if plain else "trainer_gas_llama"
        return judged(records, count, (), another=never)
    alarms = [name for name, fired in insufficient_checks(records).items() if fired]
    return judged(records, 1 / count, alarms)


def multiplied(records: api.Records, factor: float) -> bool:
    """Whether each update is the right one times ``factor``, which is not 1."""
    return factor != 1 and all(applied.times(step, factor) for step in records.of("step"))


def judged(
    records: api.Records, factor: float, other: Iterable[str], another: str = ""
) -> api.Finding | None:
    """The finding, documented if each update is ``factor`` times the right one, and nothing else is
    wrong; ``other`` says what else is. With ``another`` it is that bug's instead."""
    steps = records.of("step")
    wrong = [step for step in steps if not applied.times(step, 1)]
    others = [*_otherwise_wrong(records), *other]
    if wrong:
        exactly = all(applied.times(step, factor) for step in steps) and not others
        lines = [*others, *map(applied.described, wrong)]
        return applied.finding(
            wrong, lines, documented=exactly and not another, another=another if exactly else ""
        )
    if others:
        return api.Finding("\n".join(others), ranks=records.ranks, documented=False)
    return None


def _otherwise_wrong(records: api.Records) -> Iterator[str]:
    """What is wrong besides the size of an update."""
    steps = records.of("step")
    rows = [row for step in steps for row in step["rows"]]
    if sorted(rows) != list(range(len(rows))):
        known = len({row for row in rows if row >= 0})
        yield f"the model was given {len(rows)} rows, only {known} of them different"
    for step in steps:
        if step["aside"]:
            yield f"the weights changed by up to {step['aside']:.3g} before step {step['step']}"
        yield from normaliser.miscounted(step, len(steps[0]["rows"]))


def exercised(records: api.Records) -> api.Exercise:
    """Each step of the optimizer came after several micro-batches: as many as were requested."""
    steps, wanted = records.of("step"), records.params.accumulation
    counts = sorted({len(step["micro"]) for step in steps})
    text = f"{len(steps)} updates came after {', '.join(map(str, counts))} micro-batches each"
    return api.Exercise.needs(wanted > 1, "no accumulation was requested") & api.Exercise.of(
        counts == [wanted], text, f"{text}, but {wanted} were requested"
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """A check that misses this bug, and whether it fired: the logged loss is from before the
    division."""
    return {"the logged loss is not the mean over all tokens": not logged_as(records, [TOKENS])}


def logged_as(records: api.Records, normalisers: Iterable[str]) -> bool:
    """Whether one of these normalisers gives each loss that the Trainer has logged."""
    steps, logged = records.of("step"), records.one("logged")
    losses = logged["losses"] if logged else []
    return len(losses) == len(steps) and any(
        all(
            name in normaliser.explains(loss, step["losses"], step["tokens"])
            for loss, step in zip(losses, steps, strict=True)
        )
        for name in normalisers
    )
