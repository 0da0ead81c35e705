"""A WebDataset with shardshuffle and no seed reads its shards in the same order in every epoch.

This affects users who read a ``WebDataset(urls, shardshuffle=N)`` for several epochs. The shards
are shuffled once, when the dataset is made: a second dataset or a second run has another order, so
the shuffling seems to work. A buffer that shuffles samples mixes only those of neighbouring shards,
which are always the same.

Root cause: without a seed, the constructor draws one, and since pull request 373 it passes that
seed to the filter that shuffles shards. The filter makes a new generator from it for each
iteration. Before that, the filter got no seed, and used the time. Pull request 502, which is open,
goes back to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.bugs import api

SAMPLES = 3
"""Samples in a shard."""


def plan(at: api.Position) -> api.Plan:
    """For each epoch: the first epoch with this order of shards, whether it is the order of their
    names, and how many samples came in how many shards."""
    facts = {"like": api.COUNT, "by_name": api.FLAG, "shards": api.COUNT, "samples": api.COUNT}
    return {"epoch": api.Kind(facts, api.each(at.params.epochs))}


def run(ctx: api.Context) -> None:
    """Read some epochs of a dataset, and note the order of the shards.

    The orders themselves are not recorded, as without the bug they depend on the time.
    """
    import webdataset

    p = ctx.params
    options = {"detshuffle": True} if p.shuffle == "detshuffle" else {}
    dataset = webdataset.WebDataset(
        _written(ctx.folder, p.shards), shardshuffle=p.shards, **options
    )
    source = _loader(dataset.decode().to_tuple("txt"), p.workers)
    orders: list[Sequence[int]] = []
    for epoch in range(1, p.epochs + 1):
        samples = [int(sample[0]) for sample in source]
        order = list(dict.fromkeys(sample // SAMPLES for sample in samples))
        orders.append(order)
        ctx.record(
            "epoch",
            epoch,
            like=orders.index(order) + 1,
            by_name=order == sorted(order),
            shards=len(order),
            samples=len(set(samples)),
        )


def _written(folder: Path, shards: int) -> list[str]:
    """The paths of tar files with a few numbered samples each."""
    import io
    import tarfile

    paths = []
    for shard in range(shards):
        paths.append(str(folder / f"{shard:03d}.tar"))
        with tarfile.open(paths[-1], "w") as file:
            for sample in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                text = str(sample).encode()
                entry = tarfile.TarInfo(f"{sample:05d}.txt")
                entry.size = len(text)
                file.addfile(entry, io.BytesIO(text))
    return paths


def _loader(dataset: Any, workers: str) -> Any:
    from torch.utils.data import DataLoader

    if workers == "none":
        return dataset
    persistent = workers == "persistent"
    return DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=persistent)


def detect(records: api.Records) -> api.Finding | None:
    """All epochs have the same order of shards, and it is not that of their names."""
    p, epochs = records.params, records.of("epoch")
    complete = all((e["shards"], e["samples"]) == (p.shards, p.shards * SAMPLES) for e in epochs)
    orders = len({one["like"] for one in epochs})
    if orders == len(epochs) and complete:
        return None
    return api.Finding(
        f"{len(epochs)} epochs have {orders} different order(s) of {p.shards} shards",
        step=2,
        ranks=records.ranks,
        magnitude=1 - orders / len(epochs),
        unit="of the epochs repeat an order",
        clock="epoch",
        documented=complete and orders == 1 and not any(one["by_name"] for one in epochs),
    )


def exercised(records: api.Records) -> api.Exercise:
    """shardshuffle without detshuffle shuffled the shards, in several epochs."""
    epochs, shuffle = records.of("epoch"), records.params.shuffle
    shuffled = not any(one["by_name"] for one in epochs)
    text = f"{len(epochs)} epochs with {shuffle}"
    return api.Exercise.needs(
        shuffled and len(epochs) > 1, f"not shuffled: {text}"
    ) & api.Exercise.of(shuffle == "shardshuffle", text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Each epoch is shuffled and complete."""
    epochs, total = records.of("epoch"), records.params.shards * SAMPLES
    return {
        "an epoch has the shards in the order of their names": any(e["by_name"] for e in epochs),
        "a sample is missing in an epoch": any(one["samples"] != total for one in epochs),
    }


picture = api.bars(
    "Different orders of the shards",
    "with the bug all epochs have one order; otherwise each has its own",
    lambda records: [("all epochs", len({one["like"] for one in records.of("epoch")}))],
    "orders",
)
