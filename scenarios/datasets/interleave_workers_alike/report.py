"""Interleave two streams at random and read them with two workers: do the workers choose alike?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

from collections.abc import Iterator
from itertools import islice

import datasets
from torch.utils.data import DataLoader


def rows(shards: list[int], source: int) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"source": source, "shard": shard} for _ in range(100))


if __name__ == "__main__":
    streams = [
        datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1], "source": n})
        for n in range(2)
    ]
    mixed = datasets.interleave_datasets(streams, probabilities=[0.5, 0.5], seed=0)
    chosen: list[list[int]] = [[], []]
    for row in islice(DataLoader(mixed, batch_size=1, num_workers=2), 40):
        chosen[int(row["shard"][0])].append(int(row["source"][0]))
    print(f"datasets {datasets.__version__}: the sources that each worker chose")
    print(*chosen, sep="\n")
    wrong = chosen[0] == chosen[1]
    print("WRONG: both chose the same ones" if wrong else "right: each worker chose by itself")
    raise SystemExit(3 if wrong else 0)
