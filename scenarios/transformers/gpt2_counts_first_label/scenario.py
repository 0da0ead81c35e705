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

from harness.bugs import api
from scenarios.transformers import _labels as labels

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
