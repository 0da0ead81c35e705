"""self.log(sync_dist=True) averages two metrics with each other if ranks log them in another order.

This affects users who log a metric for each kind of rows, such as a language or a class, when the
batch has such rows: then the order in which a rank first logs the metrics follows its data. Here
``even`` is 1 on both ranks and ``odd`` is 100, and both are reported as 50.5. Early stopping and
the choice of the best checkpoint use these values. If the ranks log unlike numbers of metrics, the
job can hang.

Root cause: at the end of an epoch each rank reduces its metrics one after another, in the order in
which it has logged them, and the collectives carry no name.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import all_rows

METRICS = {"even": 1.0, "odd": 100.0}


def by_name(collection: Any) -> api.Edits:
    """The metrics of a collection come in the order of their names."""
    import libcst as cst
    import libcst.matchers as m

    items = m.Call(m.Attribute(m.Name("self"), m.Name("items")))
    method = m.FunctionDef(m.Name("valid_items"))
    for function in m.findall(collection, method):
        for call in m.findall(function, items):
            yield call, cst.Call(cst.Name("sorted"), [cst.Arg(cst.ensure_type(call, cst.Call))])


def mixed(record: api.Record, records: api.Records) -> bool:
    """The value is the mean of both metrics."""
    return api.near(record["value"], sum(METRICS.values()) / len(METRICS), share=1e-6)


oracle = all_rows.AllRows(mixed, "metric that is logged")


def run(ctx: api.Context) -> None:
    """Validate on one row of each kind, with Lightning's Trainer; log a metric of each."""
    from torch.utils.data import DataLoader

    from scenarios.pytorch_lightning import _validated as validated

    class Module(validated.Module):
        def validation_step(self, rows: Any, _: int) -> None:
            self.log(rows[0], METRICS[rows[0]], on_epoch=True, sync_dist=True, batch_size=1)

    names: Any = [*METRICS] if ctx.params.in_order or ctx.rank % 2 == 0 else [*METRICS][::-1]
    value = validated.metric(ctx, Module(), DataLoader(names), "even")
    ctx.record("value", 1, value=value, right=METRICS["even"])
