"""Each owner of a tied embedding misses one replica's gradient, and not all miss the same one.

In a pipeline with tied embeddings, the first stage's word embeddings and the last stage's output
layer are two copies of one weight. Both must be updated with the mean gradient of all replicas of
both stages. With the distributed optimizer, Megatron-LM gave every owner the sum of only three of
the four gradients, and not the same three on both stages. So the copies drifted apart.

Reported in May 2024 for models such as GPT-2. Nothing failed and nothing showed it: the loss went
down, and the replicas agreed. ``tied_embedding_training`` shows what that does to a training.

Root cause: the reduce-scatter over the data-parallel replicas leaves a valid sum only in each
rank's own shard of a bucket. Parameters are in the buffer in reverse order, so on the first stage
the embedding comes last (data-parallel rank 1 owns it), and on the last stage the output layer
comes first (rank 0 owns it). The all-reduce over the two stages then pairs ranks with the same
data-parallel index: it adds a reduced shard to one that is not reduced. The fix gives the tied
weight a bucket of its own, so both stages cut it at the same places. The order of the two
reductions did not change.

megatron-core 0.4.0 and 0.5.0 were released with the bug, so the buggy variant needs no defect. The
reporter proposed to all-reduce first. A variant tries that too: it fails as soon as the
reduce-scatter overlaps with the backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from harness.bugs import api
from scenarios.megatron_core import _tied_layout as layouts
from scenarios.megatron_core.tied_embedding_order import cells

COPIES = ("embedding.word_embeddings.weight", "output_layer.weight")
SCATTERED, SUMMED = "after reduce-scatter", "after embedding all-reduce"

TABLES = {
    "buggy": {
        cells.BEFORE: ("g0", "g1", "g2", "g3"),
        SCATTERED: ("g0/2", "(g0+g1)/2 own", "(g2+g3)/2 own", "g3/2"),
        SUMMED: ("g0/2+(g2+g3)/2", "(g0+g1)/2+g3/2 own", "g0/2+(g2+g3)/2 own", "(g0+g1)/2+g3/2"),
    },
    "control": {
        cells.BEFORE: ("g0", "g1", "g2", "g3"),
        SCATTERED: ("(g0+g1)/2 own", "(g0+g1)/2 own", "(g2+g3)/2 own", "(g2+g3)/2 own"),
        SUMMED: ("(g0+g1+g2+g3)/2 own",) * 4,
    },
}
"""The documented content of the cells, by rank: the report's tables, if the buffer is scaled."""

OVERLAPPING = 0.25
"""Seconds by which a backward pass is prolonged after the embedding's gradient is there."""


def embedding_first(function: Any) -> api.Edits:
    """Move the loop that finishes the reduce-scatter behind the all-reduce of the embedding."""
    import libcst as cst
    import libcst.matchers as m

    def calls(statement: Any, func: Any) -> bool:
        return bool(m.findall(statement, m.Call(func=func)))

    body = list(function.body.body)
    finish = m.Attribute(attr=m.Name("finish_grad_sync"))
    loops = [s for s in body if isinstance(s, cst.For) and calls(s, finish)]
    sums = [s for s in body if calls(s, m.Name("_allreduce_embedding_grads"))]
    if len(loops) == len(sums) == 1:
        body.remove(loops[0])
        body.insert(body.index(sums[0]) + 1, loops[0])
        yield function, function.with_changes(body=function.body.with_changes(body=body))


def plan(at: api.Position) -> api.Plan:
    """Where the copy is, the cells at three moments, and the rest."""
    return cells.plan((cells.BEFORE, SCATTERED, SUMMED))


def run(ctx: api.Context) -> None:
    """Give each rank a gradient of its own, and follow it through upstream's reductions."""
    from scenarios.megatron_core import _tied_stages as tied

    sharded, overlap = ctx.params.distributed_optimizer, ctx.params.overlap_grad_reduce
    with ctx.phase("init"):
        tied.connect(ctx)
        ddp = tied.data_parallel(tied.stage(ctx, tied.Shape()), sharded=sharded, overlap=overlap)
        place = tied.layout(ddp, tied.tied_weight(ddp), sharded=sharded)
        ctx.record("layout", **vars(place))
    with ctx.phase("reduce"):
        _reduce(ctx, ddp, place.owned)
    with ctx.phase("check"):
        others, copy = tied.others(ddp, sharded=sharded), tied.tied_weight(ddp)
        cells.record_others(ctx, others, tied.apart(copy.detach()))


def _reduce(ctx: api.Context, ddp: Any, owned: tuple[int, int]) -> None:
    """One backward pass and finalize_model_grads; records the cells before, between and after."""
    from scenarios.megatron_core import _tied_stages as tied

    finalize = import_module("megatron.core.distributed.finalize_model_grads")
    gradient = tied.tied_weight(ddp).main_grad
    row = cells.one_hot(ctx, gradient.shape[1])

    def look(when: str) -> None:
        cells.snapshot(ctx, when, gradient, owned)

    def backward() -> None:
        cells.loss_with(ddp.module, row, cells.scale(ctx.rank)).backward()

    with ddp.no_sync():  # for the first table: with overlap, the next pass is reduced at once
        backward()
    look(cells.BEFORE)
    tied.zero_gradients(ddp)
    backward()
    if ctx.params.overlap_grad_reduce:
        time.sleep(OVERLAPPING)
    cells.after(ddp, "finish_grad_sync", lambda: look(SCATTERED))
    cells.after(finalize, "_allreduce_word_embedding_grads", lambda: look(SUMMED))
    finalize.finalize_model_grads([ddp])


def detect(records: api.Records) -> api.Finding | None:
    """An owner's gradient is not the mean over the replicas, summed over the stages."""
    finding = cells.otherwise_wrong(records, sharded=records.params.distributed_optimizer)
    return finding or cells.incomplete(records, COPIES, SUMMED)


def exercised(records: api.Records) -> api.Exercise:
    """Four different gradients were reduced over the replicas and the stages. The copies were at
    different places of their buffers, and cut between the replicas."""
    cut = layouts.cut(records, sharded=records.params.distributed_optimizer)
    return cells.followed(records, (SCATTERED, SUMMED)) & cut


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, or fire without it, and whether they fired."""
    whole = cells.wholes(records)
    sums = {rank: sum(sum(row) * rows for row, rows in each) for rank, each in whole.items()}
    stages = (list(whole.values())[: layouts.REPLICAS], list(whole.values())[layouts.REPLICAS :])
    return layouts.insufficient_checks(stages[0] != stages[1], sums.get(1) != sums.get(2))


def agree(trials: Mapping[str, api.Records]) -> Iterator[str]:
    """Every documented cell must have the documented content."""
    for name in filter(trials.get, TABLES):
        yield from cells.disagree(name, trials[name], TABLES[name])


picture = partial(cells.tables, moments=(SCATTERED, SUMMED))
