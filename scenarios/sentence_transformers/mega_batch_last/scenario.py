"""MegaBatchMarginLoss trains on the last mini-batch of a batch only.

This affects users of sentence-transformers who train with MegaBatchMarginLoss. Its default computes
a large batch in mini-batches of 50 rows, to save memory. All of them are computed, and the last one
alone has a gradient: of a batch of 500 rows, 450 are never learned from. No message appears, and
the loss falls. ``use_mini_batched_version=False`` is right. From 5.4.0 on, a model that begins with
a Transformer raises in this loss, and others are trained as before.

Root cause: each mini-batch but the last shall call ``backward`` itself. Whether it is the last is
asked of the similarities' number of rows, which is the size of a mini-batch, and not of the batch:
no mini-batch calls it. The training's own ``backward`` then concerns the last one.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """The rows of a batch whose anchors get a gradient, in each step."""
    rows = api.many(api.COUNT)
    return {"batch": api.Kind({"trained": rows}, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train embeddings of words on pairs; record which anchors' words have a gradient."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MegaBatchMarginLoss

    p = ctx.params
    torch.manual_seed(ctx.seed)
    words = _words(2 * p.rows).to(ctx.device)
    model = SentenceTransformer(modules=[words], device=str(ctx.device))
    loss = MegaBatchMarginLoss(model, mini_batch_size=p.mini_batch)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    anchors, positives = torch.arange(2 * p.rows, device=ctx.device).reshape(2, p.rows, 1)
    for step in api.each(p.steps):
        optimizer.zero_grad()
        loss([{"input_ids": anchors}, {"input_ids": positives}], torch.zeros(p.rows)).backward()
        moved = words.table.weight.grad[: p.rows].norm(dim=1) > 0
        ctx.record("batch", step, trained=moved.nonzero().flatten().tolist())
        optimizer.step()


def _words(count: int) -> Any:
    """A module of sentence-transformers that gives each word a vector; a text is one word."""
    import torch

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(count, 16)

        def forward(self, features: Any) -> Any:
            return {**features, "sentence_embedding": self.table(features["input_ids"][:, 0])}

    return Words()


def detect(records: api.Records) -> api.Finding | None:
    """The anchors of the last mini-batch have a gradient, and no others."""
    p, batches = records.params, records.of("batch")
    lost = [one for one in batches if len(one["trained"]) < p.rows]
    if not lost:
        return None
    last = list(range((p.rows - 1) // p.mini_batch * p.mini_batch, p.rows))
    return api.Finding(
        f"{len(lost[0]['trained'])} of {p.rows} rows of a batch have a gradient: "
        f"{', '.join(map(str, lost[0]['trained']))}",
        step=lost[0]["step"],
        magnitude=1 - len(lost[0]["trained"]) / p.rows,
        unit="of the rows without a gradient",
        documented=len(lost) == len(batches) and all(one["trained"] == last for one in lost),
    )


def exercised(records: api.Records) -> api.Exercise:
    """A batch has several mini-batches."""
    p = records.params
    text = f"{p.rows} rows in mini-batches of {p.mini_batch}"
    return api.Exercise.of(p.rows > p.mini_batch, text)


picture = api.lines(
    "The rows of a batch that have a gradient",
    "with the bug, the last mini-batch alone is trained",
    lambda record: len(record["trained"]),
    "batch",
    y="rows",
)
