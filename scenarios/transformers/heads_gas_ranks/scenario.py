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

from harness.bugs import api
from scenarios.common import applied
from scenarios.transformers import _labels as labels


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
