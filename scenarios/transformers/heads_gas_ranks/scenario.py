"""With BERT's heads and many others, the Trainer multiplies the gradient by ranks x micro-batches.

transformers 5.0.0 and later are affected, including 5.23.0. Four ranks with four accumulated
micro-batches give a gradient that is 16 times too large. The logged loss has the same factor: a
classifier of four labels begins at 5.55 instead of 1.39 on two ranks with two micro-batches. AdamW
hardly depends on the size of a gradient, and the default clipping (a norm of 1) hides it; SGD,
other clipping and the logged norm do depend on it. Heads of BERT for sequences, tokens and masked
words are affected. According to their source code, so are those of RoBERTa, ELECTRA, ALBERT,
DistilBERT, T5, BART and others that compute their loss with a plain ``CrossEntropyLoss()``. LLaMA
is right as a language model, and has the fault with its heads for rows and tokens.

Root cause: ``Trainer.__init__`` takes any ``forward`` with ``**kwargs`` for one that divides the
loss itself by the number of items in the whole batch. Since 5.0.0 these heads have ``**kwargs``,
but they ignore ``num_items_in_batch`` and return a mean. ``training_step`` then does not divide by
the number of micro-batches, and ``compute_loss`` multiplies by the number of ranks. In 5.2.0 to
5.5.3 another bug, ``trainer_gas_twice``, divides by the number of micro-batches: there only the
factor of the ranks remains. The factor of the ranks needs ``average_tokens_across_devices=True``,
which is the default since 4.54.0.

Issue 47688 reports the factor of accumulation, for other heads. Pull request 41006 describes the
factor of the ranks, and mends it for ESM alone. We know of no report of it for the heads above.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied
from scenarios.transformers import _labels as labels
from scenarios.transformers._history import BEFORE_COUNTING, OLD_ACCELERATE


@dataclass
class Params(api.Knobs):
    head: str = api.knob(
        "sequence",
        choices=("sequence", "token", "masked_lm", "llama"),
        about="that computes the loss: one of BERT's, or LLaMA's, which divides by the items",
    )
    # Not as many as ranks: trainer_gas_never multiplies by the micro-batches alone.
    accumulation: int = api.knob(
        4, choices=(1, 2, 4), about="gradient_accumulation_steps: parts of a rank's rows"
    )
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of SGD")


SCENARIO = api.Scenario(
    report=(
        "reported for accumulation with other heads, and for ranks with ESM; not for these heads",
        "https://github.com/huggingface/transformers/issues/47688",
        "https://github.com/huggingface/transformers/pull/41006",
    ),
    fix="none as of transformers 5.23.0",
    symptom="the gradient is r * k times too large on r ranks with k accumulated micro-batches",
    trigger="the Trainer, a head that computes a plain mean, and several ranks or accumulation",
    remedy="set model.accepts_loss_kwargs = False before you make the Trainer, or give it a "
    "compute_loss_func that returns the sum of the losses divided by num_items_in_batch",
    pins={"transformers": "5.23.0", "accelerate": "1.13.0"},
    companions=(OLD_ACCELERATE,),
    decided_by=("transformers",),
    absent=(BEFORE_COUNTING,),
    harm="ruins training",
    visibility="visible in the loss",
    known_upstream=False,
    known_in_part="47688 is about accumulation, 41006 about ESM's heads on several ranks",
    settings={"trainer": True, "code": api.by_code("the head is one of those that are affected")},
    seen={"transformers.trainer.Trainer": api.needed({"model_accepts_loss_kwargs": True})},
    files=("transformers/trainer.py",),
    variants={
        "buggy": api.expect_symptom(about="5.23.0, four micro-batches on each of two ranks"),
        "fixed": api.expect_clean("4.57.6"),
        "control": api.control(
            "5.23.0, one micro-batch on one rank", params={"accumulation": 1}, ranks=1
        ),
        "accumulation": api.expect_symptom(about="5.23.0, four micro-batches on one rank", ranks=1),
        "two_ranks": api.expect_symptom(
            about="5.23.0, one micro-batch on each of two ranks", params={"accumulation": 1}
        ),
        "masked_lm": api.expect_symptom(
            about="5.23.0 with BERT's head for masked words", params={"head": "masked_lm"}
        ),
        "llama": api.control(
            "5.23.0 with LLaMA's head, which divides the loss itself", params={"head": "llama"}
        ),
    },
)


def multiplied(_: labels.Step, records: api.Records) -> bool:
    """Each update is the right one times the number of ranks and of micro-batches; or times the
    number of ranks alone, where ``trainer_gas_twice`` divides by the micro-batches once more."""
    steps, ranks = records.typed(labels.Step), len(records.ranks)
    factors = (ranks * records.params.accumulation, ranks)
    return any(all(step.times(factor) for step in steps) for factor in factors)


oracle = applied.Applied(
    labels.Step,
    multiplied,
    instead={"trainer_gas_never": applied.multiplied},
    checks=[applied.same_direction],
)
run = labels.run


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks or several micro-batches made each step, as many as were requested, of a model
    whose head computes a plain mean."""
    divides = records.params.head == "llama"
    return labels.divided(records) & api.Exercise.needs(
        not divides, "the head divides the loss itself"
    )
