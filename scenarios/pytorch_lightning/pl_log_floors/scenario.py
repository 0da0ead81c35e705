"""self.log(sync_dist=True) logs too large a mean if the ranks log unlike numbers of rows.

This affects users of Lightning who log a loss or a metric of an epoch on several ranks, from data
that Lightning does not pad: an IterableDataset, or a sampler of their own. With 5 rows on 2 ranks
all logged means are 1.25 times too large. The upstream report has 44 rows on 16 ranks: 1.375 times.
Early stopping, the choice of the best checkpoint, and comparisons between numbers of ranks use
these values.

Root cause: a mean is the sum over the rows divided by their number. Both are averaged over the
ranks, but the number is an integer, and so is its average: 2 instead of 2.5. If the rows divide by
the ranks, the average is exact.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import all_rows


def count_in_float(function: Any) -> api.Edits:
    """The number of rows is averaged in the type of their sum."""
    import libcst as cst
    import libcst.matchers as m

    count = m.Attribute(m.Name("self"), m.Name("cumulated_batch_size"))
    method = m.Attribute(attr=m.Name("sync"))
    for call in m.findall(function, m.Call(method, [m.Arg(count)])):
        code = cst.parse_expression("self.cumulated_batch_size.to(value.dtype)")
        yield call, call.with_changes(args=[cst.Arg(code)])


def floored(record: api.Record, records: api.Records) -> bool:
    """The mean is the sum over all rows, divided by a number of rows that every rank has."""
    ranks, total = len(records.ranks), records.params.rows
    wrong = record["right"] * total / (total // ranks * ranks)
    return api.near(record["value"], wrong, share=1e-6)


oracle = all_rows.AllRows(floored, "mean that is logged")


def run(ctx: api.Context) -> None:
    """Validate on unlike numbers of rows, with Lightning's Trainer; log the mean of the rows."""
    import torch
    from torchmetrics import MeanMetric

    from scenarios.pytorch_lightning import _validated as validated

    p = ctx.params
    torch.manual_seed(ctx.seed)
    rows = torch.rand(p.rows, 1) + 1
    of_rank = rows.tensor_split(ctx.world_size)[ctx.rank]

    class Module(validated.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = MeanMetric()

        def validation_step(self, batch: Any, _: int) -> None:
            value = self.mean if p.metric else batch.mean()
            self.mean.update(batch)
            size = len(batch)
            self.log("mean", value, on_epoch=True, sync_dist=not p.metric, batch_size=size)

    data: Any = [*of_rank]
    batches: Any = torch.utils.data.DataLoader(data, batch_size=len(of_rank))
    value = validated.metric(ctx, Module(), batches, "mean")
    ctx.record("value", 1, value=value, right=float(rows.mean()))


def exercised(records: api.Records) -> api.Exercise:
    """A tensor was logged, and the rows do not divide by the ranks."""
    p, ranks = records.params, len(records.ranks)
    text = f"{p.rows} rows on {ranks} ranks"
    return api.Exercise.needs(not p.metric, "a MeanMetric was logged") & api.Exercise.of(
        p.rows % ranks > 0, text
    )
