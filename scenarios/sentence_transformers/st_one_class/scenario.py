"""Batches by label have one label only: triplet losses find no negative, and have no gradient.

This affects users of sentence-transformers who train on texts with labels, with one of the four
``Batch...TripletLoss`` and ``batch_sampler="group_by_label"``, which the documentation recommends
for them. Such a loss compares texts of one label with those of another. If labels have more texts
than a batch, most batches have one label only: nothing is learned from them. No message appears.

Root cause: ``GroupByLabelBatchSampler`` puts all texts of a label into a row, one label after
another, and cuts that row into batches. The fix takes texts of several labels in turn.
"""

from __future__ import annotations

from harness.bugs import api

BATCH, TEXTS = 8, 16
"""Texts of a batch, and of a label."""


def plan(at: api.Position) -> api.Plan:
    """The labels in each batch of an epoch, and the norm of the loss's gradient."""
    batches = api.each(at.params.labels * TEXTS // BATCH)
    labels = api.many(api.COUNT, BATCH)
    return {"batch": api.Kind({"labels": labels, "gradient": api.SIZE}, batches)}


class Texts:
    """A dataset of texts with labels, as far as the sampler reads it."""

    column_names = ("text", "label")

    def __init__(self, labels: list[int]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, column: str) -> list[int]:
        return self.labels


def run(ctx: api.Context) -> None:
    """Compute the loss of each batch of an epoch for random embeddings; record its gradient."""
    import torch
    from sentence_transformers import losses, sampler

    p = ctx.params
    labels = [text // TEXTS for text in range(p.labels * TEXTS)]
    if p.order == "in turn":
        batches = [
            list(range(first, len(labels), len(labels) // BATCH))
            for first in range(len(labels) // BATCH)
        ]
    else:
        generator = torch.Generator()
        by_label = sampler.GroupByLabelBatchSampler(
            Texts(labels),
            BATCH,
            drop_last=True,
            valid_label_columns=["label"],
            generator=generator,
            seed=ctx.seed,
        )
        batches = list(by_label)
    loss = losses.BatchAllTripletLoss(torch.nn.Identity())
    torch.manual_seed(ctx.seed)
    embeddings = torch.randn(len(labels), 8, device=ctx.device, requires_grad=True)
    for number, batch in enumerate(batches, 1):
        chosen = torch.tensor([labels[text] for text in batch], device=ctx.device)
        value = loss.batch_all_triplet_loss(chosen, embeddings[batch])
        (gradient,) = torch.autograd.grad(value, embeddings)
        ctx.record("batch", number, labels=chosen.tolist(), gradient=float(gradient.norm()))


def detect(records: api.Records) -> api.Finding | None:
    """Each batch has texts of one label, and no gradient."""
    batches = records.of("batch")
    lost = [one for one in batches if not one["gradient"]]
    if not lost:
        return None
    return api.Finding(
        f"{len(lost)} of {len(batches)} batches have no gradient; the labels of the first are "
        f"{', '.join(map(str, lost[0]['labels']))}",
        step=lost[0]["step"],
        magnitude=len(lost) / len(batches),
        unit="of the batches without a gradient",
        clock="batch",
        documented=len(lost) == len(batches) and all(len({*one["labels"]}) == 1 for one in lost),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The sampler made batches of labels with more texts than a batch."""
    p = records.params
    text = f"{p.labels} labels with {TEXTS} texts each, in batches of {BATCH}, {p.order}"
    return api.Exercise.of(p.order == "by label" and p.labels > 1, text)


picture = api.lines(
    "The gradient of each batch",
    "with the bug, batches have no gradient",
    lambda record: record["gradient"],
    "batch",
    y="norm of the gradient",
)
