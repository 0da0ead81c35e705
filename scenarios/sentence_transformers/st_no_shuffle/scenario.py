"""NoDuplicatesBatchSampler never shuffles: each epoch has the rows in the order of the dataset.

This affects users of sentence-transformers who train with ``BatchSamplers.NO_DUPLICATES``, which
the documentation recommends for losses with in-batch negatives. Neighbours in the file are always
together in a batch, so each row has the same negatives in each epoch, and another seed changes
nothing. If the file is sorted by topic, the training sees one topic after another. The rows are
complete, so a count does not show it.

Root cause: the sampler draws a random permutation, and puts it into a set to remove rows quickly. A
Python set of small integers iterates in ascending order. The fix uses the keys of a dictionary,
which keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, orders, rows

BATCH = 8


def never_shuffled(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """All epochs, with both seeds, have all rows in the order of the dataset."""
    epochs = [*rows.by_epoch(records).values(), *rows.by_epoch(records, "reseeded").values()]
    in_order = list(range(records.params.rows))
    return all(list(seen) == in_order for ranks in epochs for seen in ranks)


def seedless(records: api.Records) -> Iterator[epochs.Fault]:
    """The epochs that have the same order with another seed."""
    others, p = rows.by_epoch(records, "reseeded"), records.params
    for epoch, ranks in rows.by_epoch(records).items():
        if ranks == others[epoch]:
            text = f"epoch {epoch} has the same order with another seed"
            yield epochs.Fault(epochs.Unit.SEEDLESS, epoch, 1 / p.epochs, text)


oracle = epochs.Epochs(
    never_shuffled,
    orders=(orders.unshuffled, seedless),
    checks=(epochs.another_number, epochs.row_twice),
    picture=orders.in_order,
)


def plan(at: api.Position) -> api.Plan:
    """The rows of each epoch, with both seeds."""
    rows_of_epochs = oracle.plan(at)["epoch"]
    return {"epoch": rows_of_epochs, "reseeded": rows_of_epochs}


class Pairs:
    """A dataset of questions and answers that are all different, as ``datasets`` would hold it."""

    column_names = ("question", "answer")

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> dict[str, str]:
        return {"question": f"question {row}", "answer": f"answer {row}"}


def run(ctx: api.Context) -> None:
    """Read some epochs with two seeds through a loader like the Trainer's.

    The Trainer itself also needs accelerate and datasets, and the bug does not.
    """
    from torch.utils.data import DataLoader

    p = ctx.params
    pairs: Any = Pairs(p.rows)
    for kind, seed in (("epoch", ctx.seed + 1), ("reseeded", ctx.seed + 1001)):
        sampler = _sampler(pairs, p.sampler, seed)
        loader = DataLoader(pairs, batch_sampler=sampler, collate_fn=list)
        for epoch in range(p.epochs):
            sampler.set_epoch(epoch)
            questions = [pair["question"] for batch in loader for pair in batch]
            ctx.record(kind, epoch + 1, seen=[int(question.split()[1]) for question in questions])


def _sampler(pairs: Any, name: str, seed: int) -> Any:
    """The sampler, with the Trainer's arguments."""
    import torch
    from sentence_transformers.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
    from torch.utils.data import SubsetRandomSampler

    generator = torch.Generator().manual_seed(seed)
    if name == "no_duplicates":
        options = {"generator": generator, "seed": seed}
        return NoDuplicatesBatchSampler(pairs, BATCH, drop_last=False, **options)
    order = SubsetRandomSampler(range(len(pairs)), generator=generator)
    return DefaultBatchSampler(order, BATCH, drop_last=False)
