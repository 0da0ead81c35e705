"""A metric of ignite that is computed twice without a reset counts earlier rows again.

On several ranks each ``compute`` after an ``update`` adds up the counts of all ranks once more,
also those that were added up before. With two ranks the rows of the first update count once in
the first value, twice in the second, four times in the third. This affects users who look at a
running value in an epoch. One rank is right, and so is one ``compute`` at the end of an epoch.

Root cause: the decorator ``sync_all_reduce`` writes the sum over the ranks back into the metric's
own counts, and the next update counts on from there. The fix restores the rank's own counts when
the value is computed.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import all_rows


def again(record: api.Record, records: api.Records) -> bool:
    """Each value after the first counts the sums of the one before once for each rank."""
    ranks, hits, rows = len(records.ranks), 0, 0
    for step in range(1, record["step"] + 1):
        parts = [part for part in records.of("value") if part["step"] == step]
        hits = ranks * hits + sum(part["hits"] for part in parts)
        rows = ranks * rows + sum(part["rows"] for part in parts)
    return api.near(record["value"], hits / rows, share=1e-6)


def computed(at: api.Position) -> range:
    """The updates after which the value is computed."""
    return range(1 if at.params.computed == "each" else at.params.steps, at.params.steps + 1)


oracle = all_rows.AllRows(
    again,
    metric="accuracy",
    facts=lambda at: {"hits": api.COUNT, "rows": api.COUNT},
    steps=computed,
    checks={"a value is above 1": lambda one, _: one["value"] > 1},
)


def run(ctx: api.Context) -> None:
    """Update upstream's accuracy with this rank's rows, and compute it."""
    import ignite.distributed as idist
    import torch
    import torch.distributed as dist
    from ignite.metrics import Accuracy

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    idist.sync()
    generator = torch.Generator().manual_seed(ctx.seed)
    # Each update has fewer right answers, so the value shows which rows count how often.
    chances = torch.linspace(0.9, 0.1, p.steps)[:, None, None]
    hits = torch.rand(p.steps, ctx.world_size, p.rows, generator=generator) < chances
    metric = Accuracy(device=ctx.device)
    for step in range(1, p.steps + 1):
        answers = hits[step - 1, ctx.rank].long()
        labels = torch.ones(p.rows, dtype=torch.long)
        metric.update(
            (torch.nn.functional.one_hot(answers, 2).to(ctx.device), labels.to(ctx.device))
        )
        if step in computed(ctx):
            # The oracle needs the rows since the last value.
            new = hits[:step, ctx.rank] if p.computed == "last" else hits[step - 1, ctx.rank]
            ctx.record(
                "value",
                step,
                value=float(metric.compute()),
                right=float(hits[:step].double().mean()),
                hits=int(new.sum()),
                rows=new.numel(),
            )
