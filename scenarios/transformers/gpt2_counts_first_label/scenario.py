"""The Trainer divides GPT-2's loss by all labels of a row, though the first one is never predicted.

With rows of L tokens, each update of GPT2LMHeadModel is (L - 1) / L times the right one: 0.75 with
rows of 4 tokens, 0.999 with 1024. Short rows suffer most, for example in classification by
generation. CTRL, OpenAI GPT, BertLMHeadModel, BertGenerationDecoder and Reformer have the same
factor; LLaMA and most newer ones are right. All ranks and all micro-batches have the same factor,
so comparing layouts with each other does not show it.

Root cause: the Trainer counts the labels that are not -100, and the model divides the sum of its
losses by that count. A model that predicts the next token never predicts the first label. Pull
request 46204 leaves the first label out of the count, but only for models whose ``loss_type`` is
``ForCausalLM``. GPT-2's ``loss_type`` is None: it is derived from the name of the class.

We know of no report about these classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.transformers import _labels as labels
from scenarios.transformers._history import BEFORE_COUNTING, OLD_ACCELERATE


@dataclass
class Params(api.Knobs):
    head: str = api.knob("gpt2", choices=("gpt2", "llama"), about="the model that is trained")
    accumulation: int = api.knob(
        1, choices=(1, 2, 4), about="gradient_accumulation_steps: parts of a rank's rows"
    )
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.1, above=0, about="of SGD")


SCENARIO = api.Scenario(
    report=(
        "no report about GPT-2; a fix for models with another loss_type, such as LLaMA",
        "https://github.com/huggingface/transformers/pull/46204",
    ),
    fix="none as of transformers 5.23.0",
    symptom="the gradient of GPT2LMHeadModel is (L - 1) / L times that of its own mean loss, with "
    "rows of L tokens",
    trigger="the Trainer and GPT2LMHeadModel, with a label that counts at the first token",
    remedy="set model.loss_type = 'ForCausalLM' before you make the Trainer, or set the first "
    "label of each row to -100",
    pins={"transformers": "5.23.0", "accelerate": "1.13.0"},
    companions=(OLD_ACCELERATE,),
    decided_by=("transformers",),
    absent=(BEFORE_COUNTING,),
    harm="ruins training",
    visibility="silent",
    settings={"trainer": True, "code": api.by_code("the model is one of those that are affected")},
    seen={
        "transformers.models.gpt2.modeling_gpt2.GPT2LMHeadModel or "
        "transformers.models.ctrl.modeling_ctrl.CTRLLMHeadModel or "
        "transformers.models.openai.modeling_openai.OpenAIGPTLMHeadModel or "
        "transformers.models.bert.modeling_bert.BertLMHeadModel or "
        "transformers.models.bert_generation.modeling_bert_generation.BertGenerationDecoder or "
        "transformers.models.reformer.modeling_reformer.ReformerModelWithLMHead": api.NEEDED
    },
    known_upstream=False,
    files=("transformers/trainer.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("4.45.2"),
        "control": api.control("5.23.0 with a LLaMA", params={"head": "llama"}),
        "accumulation": api.expect_symptom(
            about="5.23.0 with two micro-batches", params={"accumulation": 2}
        ),
    },
)
oracle = labels.without_first
run = labels.run


def exercised(records: api.Records) -> api.Exercise:
    """GPT-2 was trained, with a label at each token."""
    steps, model = records.of("step"), records.params.head
    return api.Exercise.of(
        model == "gpt2",
        f"{len(steps)} steps of GPT-2 on rows of {labels.LENGTH} tokens, each with a label",
        f"the model was {model}",
    )
