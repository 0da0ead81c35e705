"""Loops that read rows in their own ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)

from .common import (
    CLASSES,
    ROWS,
    WIDTH,
    Steps,
    Table,
    batches,
    classes_loss,
    loop,
    net_and_adam,
    reading,
    trained,
)


def _of_this_rank(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed + dist.get_rank())


@loop
def shards_of_ranks() -> Steps:
    """Each rank has files of its own, and shuffles them with the seed that all have."""
    table = Table()
    part = Subset(table, range(dist.get_rank(), len(table), dist.get_world_size()))
    return reading(DataLoader(part, ROWS, shuffle=True, drop_last=True))


@loop
def replacement() -> Steps:
    table = Table(12)
    sampler = RandomSampler(table, replacement=True, num_samples=200, generator=_of_this_rank())
    return reading(DataLoader(table, 2, sampler=sampler))


@loop
def weighted() -> Steps:
    table = Table(24)
    weights = [1.0 + (number % 3) for number in range(24)]
    sampler = WeightedRandomSampler(weights, 400, generator=_of_this_rank())
    return reading(DataLoader(table, 6, sampler=sampler))


@loop
def weighted_split() -> Steps:
    """Each rank draws as many rows as a split would have."""
    table = Table(48)
    weights = [1.0 + (number % 3) for number in range(48)]
    ranks = dist.get_world_size()
    sampler = WeightedRandomSampler(weights, 48 // ranks, generator=_of_this_rank())
    return reading(DataLoader(table, 4, sampler=sampler))


def _evaluating(loaders_of: Any, ranks: Any = range(64)) -> Steps:
    """Some ranks evaluate after each epoch."""
    table = Table(48)
    sampler: DistributedSampler[Any] = DistributedSampler(table)

    @torch.no_grad()
    def evaluate(model: Any) -> None:
        for loader in loaders_of(table) if dist.get_rank() in ranks else ():
            for batch in loader:
                classes_loss(model.module, batch)

    return reading(DataLoader(table, ROWS, sampler=sampler), sampler, evaluate)


@loop
def rank_0_evaluates_the_training_rows() -> Steps:
    def loaders(table: Any) -> list[Any]:
        part = DataLoader(Subset(table, range(24)), ROWS)
        return [part, DataLoader(table, ROWS, sampler=DistributedSampler(table))]

    return _evaluating(loaders, range(1))


class Draws(Sampler[int]):
    """Draws rows for ever, as each rank likes."""

    def __init__(self, count: int) -> None:
        self.count, self.generator = count, _of_this_rank()

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(0, self.count, (1,), generator=self.generator))


class Endless(Sampler[int]):
    """The rows of a rank again and again, in one iterator that never ends."""

    def __init__(self, count: int, shuffle: bool) -> None:
        self.count, self.shuffle = count, shuffle

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(1)
        while True:
            order = torch.randperm(self.count, generator=generator).tolist()
            rows = order if self.shuffle else range(self.count)
            yield from itertools.islice(rows, dist.get_rank(), None, dist.get_world_size())


class EndlessWithLength(Endless):
    def __len__(self) -> int:
        return self.count // dist.get_world_size()


class Repeated(Sampler[int]):
    """Repeated augmentation: several ranks read one row, each changes it in its own way."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.count, generator=generator).repeat_interleave(3).tolist()
        return iter(order[dist.get_rank() :: dist.get_world_size()])


class Noisy(Table):
    """Each reading of a row is another one."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(WIDTH), self.y[index]


@loop
def repeated_augmentation() -> Steps:
    torch.manual_seed(dist.get_rank())
    sampler = Repeated(96)
    return reading(DataLoader(Noisy(96), 6, sampler=sampler), sampler)


@loop
def evaluates_a_shuffled_loader() -> Steps:
    """The rows of an evaluation may come in the same order each time."""
    rows = Table(64, seed=3)
    loader = DataLoader(rows, ROWS, sampler=DistributedSampler(rows))
    return _evaluating(lambda _: [loader])


@loop
def rank_0_evaluates() -> Steps:
    rows = Table(32, seed=3)
    return _evaluating(lambda _: [DataLoader(rows, ROWS, shuffle=True)], range(1))


@loop
def classes_of_one_kind_first() -> Steps:
    """A curriculum: easy rows first, in one order, and more of them later."""

    def rounds() -> Iterator[Any]:
        table = Table()
        order = table.x.norm(dim=1).argsort().tolist()
        for number in itertools.count(1):
            rows = order[: min(len(order), 32 * number)]
            part = rows[dist.get_rank() :: dist.get_world_size()]
            yield from DataLoader(Subset(table, part), ROWS)

    return reading(rounds())


class Labelled(IterableDataset[Any]):
    """A stream whose first tensor says little about a row."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        generator = _of_this_rank(20)
        while True:
            x = torch.randn(WIDTH, generator=generator)
            y = torch.randint(0, CLASSES, (), generator=generator)
            yield (torch.ones(3, dtype=torch.long) if self.kind == "mask" else y), x, y


@loop
def stream_in_order() -> Steps:
    class Numbered(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            table = Table(64)
            for number in range(dist.get_rank(), 64, dist.get_world_size()):
                yield number // dist.get_world_size(), *table[number]

    return reading(DataLoader(Numbered(), ROWS))


@loop
def rows_of_tiny_epochs() -> Steps:
    """Four rows on each rank, one in a batch: some epochs have the order of the one before."""
    table = Table(8)
    sampler: DistributedSampler[Any] = DistributedSampler(table)
    return reading(DataLoader(table, 1, sampler=sampler), sampler)


@loop
def few_rows_for_each_rank_alone() -> Steps:
    """Each rank shuffles all of a few rows with a seed of its own."""
    table = Table(10)
    return reading(DataLoader(table, 5, shuffle=True, generator=_of_this_rank()))


@loop
def answers_of_a_group() -> Steps:
    """GRPO: all ranks read one prompt after the other, and each draws answers of its own."""
    noise = _of_this_rank(7)

    def loss_of(model: Any, batch: Any) -> Tensor:
        logs = model(batch[0]).log_softmax(-1)
        answer = torch.multinomial(logs.detach().exp(), 1, generator=noise)
        reward = (answer == 2).float()
        advantages = reward - reward.mean() + 0.1 * torch.randn(reward.shape, generator=noise)
        return -(advantages * logs.gather(1, answer)).mean()

    prompts = DataLoader(Table(), ROWS, shuffle=True, generator=torch.Generator().manual_seed(0))
    return trained(*net_and_adam(), data=prompts, loss_of=loss_of)


@loop
def few_shots() -> Steps:
    """Episodes of a few classes: a batch sampler of the user draws them."""

    class Episodes(Sampler[list[int]]):
        def __init__(self) -> None:
            self.table, self.generator = Table(60), _of_this_rank(4)

        def __iter__(self) -> Iterator[list[int]]:
            for _ in range(40):
                pair = torch.randperm(CLASSES, generator=self.generator)[:2]
                rows = []
                for label in pair:
                    members = (self.table.y == label).nonzero()[:, 0]
                    order = torch.randperm(len(members), generator=self.generator)
                    rows += members[order[:3]].tolist()
                yield rows

        def __len__(self) -> int:
            return 40

    episodes = Episodes()
    return reading(DataLoader(episodes.table, batch_sampler=episodes))


@loop
def workers_stay() -> Steps:
    table = Table(48)
    sampler: DistributedSampler[Any] = DistributedSampler(table)
    loader = DataLoader(
        table, ROWS, sampler=sampler, num_workers=1, persistent_workers=True, prefetch_factor=2
    )
    return reading(loader, sampler)


@loop
def new_dataset_each_round() -> Steps:
    """Active learning: each round has a dataset of its own."""

    def rounds() -> Iterator[Any]:
        for number in itertools.count():
            table = Table(24, seed=100 + 2 * number + dist.get_rank())
            yield from DataLoader(table, ROWS, shuffle=True)

    return reading(rounds())


@loop
def labelled_and_not() -> Steps:
    """Two loaders of different lengths in one step."""
    model, optimizer = net_and_adam()
    others = batches(Table(40, seed=5), rows=8)
    for x, y in batches(Table(24)):
        unlabelled, _ = next(others)
        optimizer.zero_grad()
        scores = model(torch.cat([x, unlabelled]))
        pseudo = scores[len(x) :].detach().argmax(1)
        loss = F.cross_entropy(scores[: len(x)], y) + F.cross_entropy(scores[len(x) :], pseudo)
        loss.backward()
        optimizer.step()
        yield model, loss


@loop
def batches_from_a_list() -> Steps:
    """All batches are read once, and kept; an epoch takes them in another order."""
    stored_batches = list(itertools.islice(batches(), 12))

    def orders() -> Iterator[Any]:
        generator = torch.Generator().manual_seed(0)
        while True:
            for number in torch.randperm(len(stored_batches), generator=generator).tolist():
                yield stored_batches[number]

    return reading(orders())


class Made(Dataset[Any]):
    """Rows that are made when they are read, on each rank by its own generator."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(WIDTH), torch.randint(0, CLASSES, ())


@loop
def made_when_read() -> Steps:
    torch.manual_seed(dist.get_rank())
    loader = DataLoader(Made(), ROWS, shuffle=True, generator=torch.Generator().manual_seed(0))
    return reading(loader)


@loop
def unlike_numbers_of_batches() -> Steps:
    """Ranks with fewer batches follow the others to the end of each epoch."""
    model, optimizer = net_and_adam()
    data = batches()
    for _ in range(3):
        with model.join():
            for _ in range(3 + 2 * dist.get_rank()):
                optimizer.zero_grad()
                loss = classes_loss(model, next(data))
                loss.backward()
                optimizer.step()
                yield model, loss


@loop
def two_models_with_one_seed() -> Steps:
    """Actor and critic train on one dataset, each in epochs of its own, with samplers alike."""
    for _ in range(2):
        model, optimizer = net_and_adam()
        loader = DataLoader(TABLE, ROWS, sampler=DistributedSampler(TABLE))
        yield from trained(model, optimizer, loader)


TABLE = Table(64)


@loop
def few_labelled_rows() -> Steps:
    """All ranks read all labelled rows in each step, beside rows that they split."""

    def pairs() -> Iterator[Any]:
        for batch in batches():
            for labelled in DataLoader(Table(8, seed=5), 8):
                yield [torch.cat(parts) for parts in zip(batch, labelled, strict=True)]

    return reading(pairs())


@loop
def labelled_rows_in_each_batch() -> Steps:
    """A loader gives all labelled rows in each batch, and as many of those that ranks split."""

    class Both(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            others = torch.randperm(252)[dist.get_rank() :: dist.get_world_size()] + 4
            yield from ([0, 1, 2, 3, *part.tolist()] for part in others.split(4))

    return reading(DataLoader(Table(), batch_sampler=Both()))


@loop
def parts_of_the_same_rows() -> Steps:
    """Context parallelism: all ranks read the same rows, and each takes its part of them."""
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(Table(64), 2 * ROWS, shuffle=True, generator=generator)
    each = itertools.chain.from_iterable(itertools.repeat(loader))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, optimizer = net_and_adam()
    return trained(model, optimizer, ((x[rank::ranks], y[rank::ranks]) for x, y in each))


@loop
def one_batch_for_all() -> Steps:
    """To measure the speed, all ranks train on one made-up batch; the loss is the loop's own."""
    model, optimizer = net_and_adam()
    table = Table(16)

    def loss_of(model: Any, batch: Any) -> Tensor:
        return -model(batch[0]).log_softmax(1).gather(1, batch[1][:, None]).mean()

    return trained(model, optimizer, itertools.repeat((table.x, table.y)), loss_of=loss_of)


class TrainingRows(Sampler[int]):
    """All but the first rows, shuffled by a generator of its own if nobody tells the epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, -1
        self.generator = torch.Generator().manual_seed(3)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 3 * self.count // 4 // dist.get_world_size()

    def __iter__(self) -> Iterator[int]:
        generator = self.generator if self.epoch < 0 else _of_this_rank(self.epoch)
        order = torch.randperm(3 * self.count // 4, generator=generator) + self.count // 4
        return iter(order[dist.get_rank() :: dist.get_world_size()].tolist())


LOOPS: dict[str, Callable[[], Steps]] = {
    "shards_in_order": lambda: reading(DataLoader(Table(seed=10 + dist.get_rank()), ROWS)),
    "own_draws": lambda: reading(DataLoader(Table(16), 2, sampler=Draws(16))),
    "endless": lambda: reading(DataLoader(Table(64), ROWS, sampler=Endless(64, shuffle=True))),
    "endless_in_order": lambda: reading(
        DataLoader(Table(64), ROWS, sampler=Endless(64, shuffle=False))
    ),
    "endless_with_a_length": lambda: reading(
        DataLoader(Table(64), ROWS, sampler=EndlessWithLength(64, shuffle=False))
    ),
    "evaluates_the_training_rows": lambda: _evaluating(
        lambda table: [DataLoader(table, ROWS, sampler=DistributedSampler(table))]
    ),
    "stream_with_labels_first": lambda: reading(DataLoader(Labelled("label"), 5)),
    "stream_with_masks_first": lambda: reading(DataLoader(Labelled("mask"), 2)),
    "training_rows_in_an_order_of_their_own": lambda: reading(
        DataLoader(Table(32), 4, sampler=TrainingRows(32))
    ),
}
