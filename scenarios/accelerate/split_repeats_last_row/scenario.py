"""split_between_processes gives the last row to several ranks, also without padding.

This affects users who split prompts or rows of an evaluation between the ranks, each of which
generates or scores its part, and gather the results. With 3 rows on 4 ranks the last row comes
twice. Up to 0.30.1 that also happens with more rows than ranks: with 9 rows on 4 ranks the last one
comes twice, with 17 on 8 three times. There are more results than rows, and the last row weighs
more in a mean. No error is raised.

Root cause: since 0.22.0 a rank whose start lies beyond the end gets the last row, and not nothing,
so that it has something to pad with; but it gets the row without padding, too. Up to 0.30.1 each
rank takes the quotient, rounded up, so that a start lies beyond the end more often. Pull request
2781 (0.31.0) mended that part; the fix leaves the rank without rows.
"""

from __future__ import annotations

from itertools import chain

from harness.bugs import api
from scenarios.common import all_rows


def came(records: api.Records) -> list[int]:
    """The rows of all ranks, in the order of the ranks."""
    return list(chain.from_iterable(one["rows"] for one in records.of("value")))


def last_row_again(_: api.Record, records: api.Records) -> bool:
    """All rows came in their order, and then the last one again, on the ranks behind the end."""
    rows, count = came(records), records.params.rows
    return rows[:count] == [*range(count)] and {*rows[count:]} == {count - 1}


oracle = all_rows.AllRows(
    last_row_again,
    metric="mean score",
    facts=lambda at: {"rows": api.many(api.COUNT)},
    checks={"a row is missing": lambda _, records: len({*came(records)}) < records.params.rows},
)


def run(ctx: api.Context) -> None:
    """Split the rows, score this rank's part, and gather the scores."""
    import torch
    import torch.distributed as dist

    from scenarios.accelerate._accelerator import accelerator

    engine = accelerator(ctx)
    generator = torch.Generator().manual_seed(ctx.seed)
    scores = torch.rand(ctx.params.rows, generator=generator).tolist()
    scores[-1] = 2.0  # larger than all others: the mean shows how often the last row counts
    with engine.split_between_processes(list(range(len(scores)))) as part:
        rows = [int(row) for row in part]
    gathered = [[scores[row] for row in rows]]
    if ctx.world_size > 1:
        parts: list[list[float]] = [[] for _ in range(ctx.world_size)]
        dist.all_gather_object(parts, gathered[0])
        gathered = parts
    pool = list(chain.from_iterable(gathered))
    mean = sum(scores) / len(scores)
    ctx.record("value", 1, value=sum(pool) / len(pool), right=mean, rows=rows)


def exercised(records: api.Records) -> api.Exercise:
    """The ranks before the last could take all rows, if each takes the quotient rounded up."""
    rows, ranks = records.params.rows, len(records.ranks)
    part = -(-rows // ranks)
    text = f"{rows} rows on {ranks} ranks"
    return api.Exercise.of(ranks > 1 and part * (ranks - 1) >= rows, text)
