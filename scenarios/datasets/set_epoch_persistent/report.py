"""Read a shuffled stream with a persistent worker and set_epoch: has each epoch another order?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

from collections.abc import Iterator
from typing import Any

import datasets
from torch.utils.data import DataLoader


def rows() -> Iterator[dict[str, int]]:
    yield from ({"row": row} for row in range(12))


if __name__ == "__main__":
    print("datasets", datasets.__version__)
    orders: dict[bool, list[list[int]]] = {False: [], True: []}
    for persistent, epochs in orders.items():
        stream = datasets.IterableDataset.from_generator(rows).shuffle(seed=0, buffer_size=12)
        loader: Any = DataLoader(stream, num_workers=1, persistent_workers=persistent)
        for epoch in range(3):
            stream.set_epoch(epoch)
            epochs.append([int(batch["row"]) for batch in loader])
            print(f"persistent_workers={persistent}, epoch {epoch}: {epochs[epoch]}")
    has_bug = orders[True] != orders[False]
    print("WRONG: set_epoch has no effect" if has_bug else "right: each epoch has its order")
    raise SystemExit(3 if has_bug else 0)
