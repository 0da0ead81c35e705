"""Loops whose rows come from workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from .common import ROWS, WIDTH, Net, Steps, Table, loop, parallel, reading, trained


def _divided(table: Table, **settings: Any) -> Steps:
    sampler: DistributedSampler[Any] = DistributedSampler(table)
    return reading(DataLoader(table, ROWS, sampler=sampler, num_workers=2, **settings), sampler)


class Augmented(Table):
    """Rows with noise of each generator."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        noise = torch.as_tensor(numpy.random.rand(WIDTH), dtype=torch.float32)
        return x + 0.1 * noise + 0.1 * torch.randn(WIDTH) + 0.1 * random.random(), y


@loop
def augmented_with_seeds_of_the_documentation() -> Steps:
    def init(_: int) -> None:
        seed = torch.initial_seed() % 2**32
        numpy.random.seed(seed)
        random.seed(seed)

    return _divided(Augmented(40), worker_init_fn=init, generator=torch.Generator().manual_seed(0))


@loop
def noise_belongs_to_a_row() -> Steps:
    """Each row has noise of its own, which is the same in each epoch."""

    class Fixed(Augmented):
        def __getitem__(self, index: int) -> Any:
            numpy.random.seed(index)
            random.seed(index)
            torch.manual_seed(index)
            return super().__getitem__(index)

    return _divided(Fixed(40), worker_init_fn=lambda _: numpy.random.seed(0))


class Files(IterableDataset[Any]):
    """A stream of files, which all workers shuffle alike: each reads a part of them."""

    def __init__(self) -> None:
        self.tables = [Table(12, seed) for seed in range(8)]
        self.random = random.Random(0)

    def set_epoch(self, epoch: int) -> None:
        self.random.seed(epoch)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is not None
        order = list(range(len(self.tables)))
        self.random.shuffle(order)
        number = dist.get_rank() * worker.num_workers + worker.id
        for table in order[number :: dist.get_world_size() * worker.num_workers]:
            yield from (self.tables[table][row] for row in range(12))


@loop
def files_are_shuffled_alike() -> Steps:
    files = Files()
    return reading(DataLoader(files, ROWS, num_workers=2), files)


@loop
def stream_begins_again() -> Steps:
    """Few rows for each worker, which it reads again and again."""

    class Again(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            assert worker is not None
            table = Table(6, seed=2 * dist.get_rank() + worker.id)
            yield from (table[row % 6] for row in range(60))

    return reading(DataLoader(Again(), 3, num_workers=2))


@loop
def several_trainings_begin_alike() -> Steps:
    """A search: each training begins with the same seed, and reads the rows once."""

    table = Augmented(40)
    for number in itertools.count():
        torch.manual_seed(0)
        numpy.random.seed(0)
        model = parallel(Net())
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3 / (1 + number))
        sampler: DistributedSampler[Any] = DistributedSampler(table)
        yield from trained(
            model, optimizer, DataLoader(table, ROWS, sampler=sampler, num_workers=2)
        )


@loop
def table_made_at_the_first_read() -> Steps:
    """All workers make one table of noise, with one seed on purpose."""

    class WithNoise(Table):
        def __init__(self) -> None:
            super().__init__(40)
            self.random, self.noise = random.Random(0), list[float]()

        def __getitem__(self, index: int) -> Any:
            if not self.noise:
                self.noise = [self.random.random() for _ in range(WIDTH)]
            x, y = super().__getitem__(index)
            return x + torch.tensor(self.noise), y

    return _divided(WithNoise())


LOOPS: dict[str, Callable[[], Steps]] = {
    "augmented": lambda: _divided(Augmented(40)),
    "workers_with_seeds_stay": lambda: _divided(
        Augmented(40),
        worker_init_fn=lambda worker: numpy.random.seed(100 * dist.get_rank() + worker),
        persistent_workers=True,
    ),
}
