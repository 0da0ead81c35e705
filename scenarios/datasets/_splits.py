"""Does each rank still see only its part of a stream after an operation on the split stream?

A record ``rows`` has the numbers of the rows that a rank saw (``seen``), of those in its part
before the operation (``part``), and of those that the operation should leave of that part
(``right``). ``whole`` has what the operation leaves of the stream that is not split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.bugs import api

FIRST, LAST = "first", "last"
"""When the stream is split: before or after the operation."""

SHARDS, IN_SHARD = 4, 4
"""Shards of a stream, and rows in a shard."""

_ROWS = api.many(api.COUNT)


def plan(at: api.Position) -> api.Plan:
    """What a rank sees."""
    rows = {"seen": _ROWS, "part": _ROWS, "right": _ROWS, "whole": api.alike(_ROWS)}
    return {"rows": api.Kind(rows)}


def stream(start: int = 0) -> Any:
    """A stream of numbered rows in shards; the first one has the number ``start``."""
    from datasets import IterableDataset

    shards = [start + shard * IN_SHARD for shard in range(SHARDS)]
    return IterableDataset.from_generator(_rows, gen_kwargs={"shards": shards})


def _rows(shards: Sequence[int]) -> Iterator[dict[str, int]]:
    for start in shards:
        yield from ({"row": start + row} for row in range(IN_SHARD))


def _numbers(dataset: Any) -> list[int]:
    return [int(row["row"]) for row in dataset]


def watch(
    ctx: api.Context,
    streams: Sequence[Any],
    operation: Callable[[Sequence[Any]], Any],
    plainly: Callable[[Sequence[list[int]]], list[int]],
) -> None:
    """Apply an operation to split streams, or split its result; record what this rank sees.

    ``plainly`` is the same operation on lists.
    """
    from datasets.distributed import split_dataset_by_node

    def split(dataset: Any) -> Any:
        return split_dataset_by_node(dataset, rank=ctx.rank, world_size=ctx.world_size)

    if ctx.params.split == FIRST:
        view = operation([split(dataset) for dataset in streams])
    else:
        view = split(operation(streams))
    parts = [_numbers(split(dataset)) for dataset in streams]
    ctx.record(
        "rows",
        seen=_numbers(view),
        part=[row for part in parts for row in part],
        right=plainly(parts),
        whole=plainly([_numbers(dataset) for dataset in streams]),
    )


def detect(records: api.Records) -> api.Finding | None:
    """The operation gives each rank the rows of all ranks, as if the stream were not split."""
    ranks = records.of("rows")
    whole = ranks[0]["whole"]
    if records.params.split == LAST:
        together = sorted(row for one in ranks for row in one["seen"])
        text = "a stream that was split last does not give each row to one rank"
        return None if together == sorted(whole) else api.Finding(text, documented=False)
    faults = [one for one in ranks if one["seen"] != one["right"]]
    if not faults:
        return None
    return api.Finding(
        "\n".join(
            f"rank {one['rank']} sees {len(one['seen'])} rows instead of {len(one['right'])}"
            for one in faults
        ),
        ranks=tuple(one["rank"] for one in faults),
        magnitude=max(len(one["seen"]) / len(one["right"]) for one in faults),
        unit="times the rows of a rank",
        documented=len(faults) == len(ranks) and all(one["seen"] == whole for one in ranks),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The stream was split before the operation, into parts of several ranks without a common
    row."""
    parts = [one["part"] for one in records.of("rows")]
    rows = [row for part in parts for row in part]
    apart = len(parts) > 1 and all(parts) and len(rows) == len(set(rows))
    text = f"the parts of the ranks have {', '.join(str(len(part)) for part in parts)} rows"
    order = records.params.split
    when = f"the stream was split {order}"
    return api.Exercise.of(apart, text, f"{text}, and some in common") & api.Exercise.of(
        order == FIRST, when
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks of one rank, and of missing rows, and whether they fired."""
    ranks = records.of("rows")
    lengths = {len(one["seen"]) - len(one["right"]) for one in ranks}
    return {
        "a rank sees a row twice": any(len(set(one["seen"])) < len(one["seen"]) for one in ranks),
        "a rank misses a row": any(set(one["right"]) - set(one["seen"]) for one in ranks),
        "a rank has more rows than another": len(lengths) > 1,
    }


def _seen_by(records: api.Records) -> Iterator[tuple[int, str, str]]:
    """Which ranks saw each row."""
    ranks = records.of("rows")
    for row in range(max(max(one["whole"]) for one in ranks) + 1):
        viewers = [f"rank {one['rank']}" for one in ranks if row in one["seen"]]
        yield row, "", " and ".join(viewers) or "nobody"


picture = api.grid(
    "Who saw which row",
    "with the bug, every rank sees every row",
    _seen_by,
    x="row",
    value="seen by",
    wrong=("rank 0 and rank 1",),
)
