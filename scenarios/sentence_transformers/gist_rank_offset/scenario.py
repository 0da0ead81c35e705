"""GISTEmbedLoss with gather_across_devices protects another rank's pairs instead of its own.

This affects users of sentence-transformers who train with GISTEmbedLoss or CachedGISTEmbedLoss on
several ranks, with ``gather_across_devices=True``. A guide model says which documents are too
similar to be negatives, and these are removed. The pair of an anchor itself must stay. On every
rank but the first, the loss keeps the pairs of rank 0 instead: some false negatives are trained as
negatives. With a margin above 0 the own pair is removed as well, and the loss is infinite, which
users see. Without a margin, which is the default, nothing shows it.

Root cause: the mask of what stays is an identity matrix. The documents of all ranks are gathered,
so on rank 1 the own pairs are in other columns. The label of the loss has this offset, the mask has
not. The fix adds it.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

TEMPERATURE, FEATURES = 0.1, 8


def plan(at: api.Position) -> api.Plan:
    """The loss of each step, that with the right mask, and that with the mask of rank 0."""
    facts = {"loss": api.NUMBER, "right": api.NUMBER, "as_rank_0": api.NUMBER}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Compute the loss of embeddings that are trained, beside plain torch's."""
    import torch
    import torch.distributed as dist
    from sentence_transformers.losses import GISTEmbedLoss

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    generator = torch.Generator().manual_seed(ctx.seed)

    def table() -> Any:
        """Embeddings of anchors and documents of all ranks: [2, ranks, rows, features]."""
        shape = 2, ctx.world_size, p.rows, FEATURES
        return torch.randn(shape, generator=generator).to(ctx.device)

    model, guide = _encoder(table()), _encoder(table())
    loss = GISTEmbedLoss(
        model,
        guide,
        temperature=TEMPERATURE,
        contrast_anchors=False,
        contrast_positives=False,
        gather_across_devices=p.gather,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in api.each(p.steps):
        optimizer.zero_grad()
        value = loss([{"kind": kind, "rank": ctx.rank} for kind in (0, 1)], None)
        ranks = range(ctx.world_size) if p.gather else [ctx.rank]
        own = ctx.rank if p.gather else 0
        losses = [_loss(model.table, guide.table, ctx.rank, ranks, own, stay) for stay in (own, 0)]
        facts = dict(zip(("right", "as_rank_0"), losses, strict=True))
        ctx.record("step", step, loss=float(value.detach()), **facts)
        value.backward()
        dist.all_reduce(model.table.grad)
        model.table.grad /= ctx.world_size
        optimizer.step()


def _encoder(table: Any) -> Any:
    """Stands in for a SentenceTransformer: a text is the number of its row."""
    import torch

    from scenarios.common import texts

    class Encoder(torch.nn.Module):
        max_seq_length, tokenizer = 8, texts.tokenizer(4)

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(table)

        def forward(self, features: Any) -> Any:
            return {"sentence_embedding": self.table[features["kind"], features["rank"]]}

    return Encoder()


def _loss(table: Any, guide: Any, rank: int, ranks: Any, own: int, stay: int) -> float:
    """The loss of a rank over the documents of ``ranks``, of which its own are the ``own``-th.
    The pairs of the ``stay``-th are not removed."""
    import torch
    from torch.nn import functional as F

    def similarities(embeddings: Any) -> Any:
        anchors, documents = embeddings[0, rank], embeddings[1, list(ranks)].flatten(0, 1)
        return F.cosine_similarity(anchors[:, None], documents[None], dim=-1)

    with torch.no_grad():
        scores, guided = similarities(table), similarities(guide)
        rows = torch.arange(len(scores), device=scores.device)
        labels = own * len(rows) + rows
        too_similar = guided > guided[rows, labels][:, None]
        too_similar[rows, stay * len(rows) + rows] = False
        scores = scores.masked_fill(too_similar, -torch.inf) / TEMPERATURE
        return float(F.cross_entropy(scores, labels))


def detect(records: api.Records) -> api.Finding | None:
    """On every rank but the first, the pairs of rank 0 stay among the documents."""
    steps = [(rank, step) for rank in records.ranks for step in records.of("step", rank)]
    wrong = [(r, one) for r, one in steps if not api.near(one["loss"], one["right"], within=1e-4)]
    if not wrong:
        return None
    first = wrong[0][1]
    others = [(r, one) for r, one in steps if r > 0]
    return api.Finding(
        f"the loss is {first['loss']:.4f}, not {first['right']:.4f}",
        step=first["step"],
        ranks=tuple(sorted({rank for rank, _ in wrong})),
        magnitude=max(abs(one["loss"] - one["right"]) for _, one in wrong),
        unit="of the loss",
        documented=wrong == others
        and all(api.near(one["loss"], one["as_rank_0"], within=1e-4) for _, one in wrong),
    )


picture = api.bars(
    "The loss of each rank in the first step",
    "with the bug, false negatives are a part of rank 1's",
    lambda records: [(f"rank {r}", records.of("step", r)[0]["loss"]) for r in records.ranks],
    "loss",
)
