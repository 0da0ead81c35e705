"""The Trainer divides LLaMA's loss by all labels of a row, though the first one is never predicted.

With rows of L tokens, each update is (L - 1) / L times the right one: 0.875 with rows of 8 tokens,
0.999 with 1024. The logged loss has the same factor. transformers 4.46 to 5.9 are affected, with
LLaMA and the other models whose loss takes ``num_items_in_batch``. All ranks and all micro-batches
have the same factor, so comparing them with each other does not show it.

Root cause: the Trainer counts the labels that are not -100, and the model divides the sum of its
losses by that count. A model that predicts the next token never predicts the first label. The fix
leaves it out of the count. It misses GPT-2 and others: ``gpt2_counts_first_label``.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.transformers import _labels as labels
from scenarios.transformers._history import BEFORE_COUNTING, OLD_ACCELERATE


@dataclass
class Params(api.Knobs):
    head: str = api.knob("llama", choices=("gpt2", "llama"), about="the model that is trained")
    accumulation: int = api.knob(
        1, choices=(1, 2, 4), about="gradient_accumulation_steps: parts of a rank's rows"
    )
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of SGD")
    first_label: bool = api.knob(True, about="whether the first label of each row counts")


SCENARIO = api.Scenario(
    report=(
        "Fix `num_items_in_batch` over-counting for causal LM losses",
        "https://github.com/huggingface/transformers/pull/46204",
    ),
    fix="https://github.com/huggingface/transformers/pull/46204",
    symptom="the gradient of LLaMA is (L - 1) / L times that of its own mean loss, with rows of L "
    "tokens",
    trigger="the Trainer and a causal language model, with a label that counts at the first token",
    remedy="set the first label of each row to -100",
    pins={"transformers": "4.46.2", "accelerate": "1.13.0"},
    companions=(OLD_ACCELERATE,),
    decided_by=("transformers",),
    absent=(BEFORE_COUNTING,),
    harm="ruins training",
    visibility="silent",
    settings={"trainer": True, "code": api.by_code("the first label of a row counts")},
    files=("transformers/trainer.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.11.0"),
        "control": api.control(
            "4.46.2 with the first labels masked", params={"first_label": False}
        ),
        "accumulation": api.expect_symptom(
            about="4.46.2 with two micro-batches", params={"accumulation": 2}
        ),
    },
)
oracle = labels.without_first


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on the same rows."""
    from scenarios.transformers import _heads as heads

    p = ctx.params
    rows = heads.dataset(p.head, heads.ROWS * p.steps, ctx.seed, p.first_label)
    with ctx.phase("init"):
        trainer = heads.trainer(ctx, rows)
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """The first label of each row counted for the Trainer."""
    return api.Exercise.of(
        records.params.first_label,
        f"{len(records.of('step'))} steps on rows of {labels.LENGTH} tokens, each with a label",
        "the first label of each row was -100",
    )
