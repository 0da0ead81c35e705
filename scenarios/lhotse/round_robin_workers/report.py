"""Let lhotse's RoundRobinSampler run in two workers: do the sources alternate?

Needs lhotse, torch of the same time, and no GPU. The exit code is 3 if the bug is there."""

from itertools import islice
from typing import Any

import lhotse
from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicCutSampler, RoundRobinSampler
from lhotse.dataset.iterable_dataset import IterableDatasetWrapper
from torch.utils.data import DataLoader, Dataset


class Names(Dataset[str]):
    """The source of a batch, which is the first letter of its cuts' names."""

    def __getitem__(self, cuts: Any) -> str:
        return str(next(iter(cuts)).id[0])


def sampler(source: str) -> Any:
    cuts = [MonoCut(f"{source}{n}", start=0, duration=1, channel=0) for n in range(40)]
    return DynamicCutSampler(CutSet.from_cuts(cuts), max_cuts=2, rank=0, world_size=1)


def sources(workers: int) -> str:
    """The sources of the first batches."""
    both = IterableDatasetWrapper(Names(), RoundRobinSampler(sampler("A"), sampler("B")))
    return "".join(islice(DataLoader(both, batch_size=None, num_workers=workers), 12))


print("lhotse", lhotse.__version__)
solo, pair = sources(1), sources(2)
print(f"sources of the batches: {solo} with one worker, {pair} with two")
print("WRONG: two batches in a row are of one source" if pair != solo else "right: they alternate")
raise SystemExit(3 if pair != solo else 0)
