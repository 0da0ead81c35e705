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

from harness.bugs import api
from scenarios.transformers import _labels as labels

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
