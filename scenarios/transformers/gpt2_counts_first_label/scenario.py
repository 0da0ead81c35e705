"""The Trainer divides GPT-2's loss by all labels of a row, though the first one is never predicted.

With rows of L tokens, each update of GPT2LMHeadModel is (L - 1) / L times the right one: 0.75 with
rows of 4 tokens, 0.999 with 1024. Short rows are hit, as in classification by generation. Eight
classes named ``...LMHeadModel`` are affected; LLaMA and most newer models are right. All ranks and
all micro-batches have the same factor, so comparing layouts with each other does not show it.

Root cause: the Trainer counts the labels that are not -100, and the model divides the sum of its
losses by that count. A model that predicts the next token never predicts the first label. For
models whose ``loss_type`` is ``ForCausalLM`` a fix in 2026 leaves the first label out of the count.
GPT-2's ``loss_type`` is None: it is derived from the name of the class.

We know of no report about GPT-2. Issue 46204 led to the fix for LLaMA.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import COUNT
from harness.knobs import Knobs, knob
from harness.settings import by_code
from harness.spec import (
    Companion,
    Context,
    Exercise,
    Finding,
    Position,
    Records,
    Scenario,
    expect_clean,
    expect_symptom,
)
from scenarios.common import applied

LENGTH = 8
"""Tokens of a row, each with a label; ``heads.LENGTH``."""


@dataclass
class Params(Knobs):
    model: str = knob("gpt2", choices=("gpt2", "llama"), about="that is trained")
    accumulation: int = knob(
        1, choices=(1, 2, 4), about="gradient_accumulation_steps: parts of a rank's rows"
    )
    steps: int = knob(3, least=1, about="of training")
    lr: float = knob(0.1, above=0, about="of SGD")


SCENARIO = Scenario(
    report=(
        "no report about GPT-2; one about LLaMA, which was fixed",
        "https://github.com/huggingface/transformers/issues/46204",
    ),
    fix="none as of transformers 5.23.0",
    symptom="the gradient of GPT2LMHeadModel is (L - 1) / L times that of its own mean loss, with "
    "rows of L tokens",
    trigger="the Trainer and GPT2LMHeadModel, with a label that counts at the first token",
    remedy="set the first label of each row to -100",
    pins={"transformers": "5.23.0", "accelerate": "1.13.0"},
    companions=(
        Companion(
            "transformers<4.48",
            {"accelerate": "0.34.2"},
            "newer ones do not install beside the huggingface_hub of these releases",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={"trainer": True, "code": by_code("the model is one of those that are affected")},
    known_upstream=False,
    files=("transformers/trainer.py",),
    ranks=1,
    variants={
        "buggy": expect_symptom(),
        "fixed": expect_clean("4.45.2"),
        "control": expect_clean(
            about="5.23.0 with a LLaMA", params={"model": "llama"}, triggers=False
        ),
        "accumulation": expect_symptom(
            about="5.23.0 with two micro-batches", params={"accumulation": 2}
        ),
    },
)
picture = applied.ratios


def plan(at: Position) -> Plan:
    """Each step, with what it applied."""
    step = {"micro_batches": COUNT, **applied.shapes()}
    return {"step": Kind(step, each(at.params.steps))}


def run(ctx: Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on the same rows."""
    from scenarios.transformers.heads_gas_ranks import heads

    p = ctx.params
    with ctx.phase("init"):
        made = heads.trainer(ctx, p.model, p.accumulation, p.steps, p.lr)
    with ctx.phase("steps"):
        made.train()


def detect(records: Records) -> Finding | None:
    """Each update is the right one times (L - 1) / L."""
    steps = records.of("step")
    wrong = [step for step in steps if not applied.times(step, 1)]
    if not wrong:
        return None
    diluted = all(applied.times(step, (LENGTH - 1) / LENGTH) for step in steps)
    return applied.finding(wrong, map(applied.described, wrong), documented=diluted)


def exercised(records: Records) -> Exercise:
    """GPT-2 was trained, with a label at each token."""
    steps, model = records.of("step"), records.params.model
    return Exercise.of(
        model == "gpt2",
        f"{len(steps)} steps of GPT-2 on rows of {LENGTH} tokens, each with a label",
        f"the model was {model}",
    )


insufficient_checks = applied.same_direction
