"""Split two streams between two ranks and concatenate them: does each rank have its own rows?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

from collections.abc import Iterator

import datasets
from datasets.distributed import split_dataset_by_node


def rows(shards: list[int]) -> Iterator[dict[str, int]]:
    """Four rows of each shard."""
    yield from ({"row": 4 * shard + row} for shard in shards for row in range(4))


streams = [
    datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": shards})
    for shards in ([0, 1], [2, 3])
]
print("datasets", datasets.__version__)
by_rank = []
for rank in (0, 1):
    parts = [split_dataset_by_node(stream, rank, world_size=2) for stream in streams]
    by_rank.append([row["row"] for row in datasets.concatenate_datasets(parts)])
    numbers = [row["row"] for part in parts for row in part]
    print(f"rank {rank} has {numbers}, and concatenated {by_rank[rank]}")
both = set(by_rank[0]) & set(by_rank[1])
print("WRONG: each rank has the rows of all" if both else "right: no row is on both ranks")
raise SystemExit(3 if both else 0)
