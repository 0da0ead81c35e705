"""Epochs of ranks: rows come equally often, in another order, on one rank; after a load, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from harness.rank.guard.checks.samples import samples
from harness.rank.guard.checks.views import Memory, RowMemory, View
from harness.rank.guard.data.epochs import SAMPLE, EpochRows
from harness.rank.guard.data.rows import Rows
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Alarm, Pass, Post, RowFacts
from tests.guard.judging import made_posts
from tests.guard.test_rows import Numbers, OneOrder, kinds, read, told_iterator

BATCH, RANKS = 4, 2


class Shuffled(Sampler[int]):
    """All rows, in another order in each epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.count, generator=generator).tolist())


class InOrder(Shuffled):
    """Could shuffle."""

    shuffled = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.do_shuffle = False

    def __iter__(self) -> Iterator[int]:
        return super().__iter__() if self.do_shuffle else iter(range(self.count))


def kinds_of_posts(posts: list[Post], memory: Memory) -> list[str]:
    """What is told of the rows of all ranks."""
    return kinds(list(samples([View(post, ParameterTable.of([]), None) for post in posts], memory)))


def alarm_kinds(
    samplers: list[Any], epochs: int = 3, size: int = 24, tells: Any = None
) -> list[str]:
    """The kinds of alarms of a training whose ranks have these samplers, and what is not seen."""
    ranks = [Rows() for _ in samplers]
    loaders = [DataLoader(Numbers(size), BATCH, sampler=sampler) for sampler in samplers]
    memory, alarms = Memory(), []
    for epoch in range(epochs):
        posts = []
        for rank, (rows, loader) in enumerate(zip(ranks, loaders, strict=True)):
            if tells is not None:
                tells(loader.sampler, epoch)
            read(rows, loader)
            posts.append(Post(rank, 0, epoch + 1, data=RowFacts(passes=rows.passes())))
        alarms += kinds([one for rows in ranks for one in rows.alarms])
        for rows in ranks:
            rows.alarms.clear()
        alarms += kinds_of_posts(posts, memory)
    return [*alarms, *memory.not_seen]


def tell(sampler: Any, epoch: int) -> None:
    sampler.set_epoch(epoch)


def test_order_of_a_sampler_that_nobody_tells_the_epoch_is_told() -> None:
    assert set(alarm_kinds([Shuffled(24)])) == {"order"}
    assert alarm_kinds([Shuffled(24)], tells=tell) == []
    assert alarm_kinds([InOrder(24)]) == []


@pytest.mark.parametrize("size", [24, 25, 5000])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_that_divide_one_order_are_right(size: int, drop_last: bool, shuffle: bool) -> None:
    samplers: list[Any] = [
        DistributedSampler(Numbers(size), RANKS, rank, shuffle=shuffle, drop_last=drop_last)
        for rank in range(RANKS)
    ]
    assert alarm_kinds(samplers, 2 if size > 100 else 3, size, tell) == []


Samplers = Callable[[int, Any], Any]
"""The sampler of a rank for a dataset."""


@pytest.fixture(autouse=True)
def _several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))


def alarms_of(
    sampler_of: Samplers,
    dataset_of: Callable[[int], Any] = lambda rank: Numbers(48),
    epochs: int = 3,
) -> list[Alarm]:
    """What is told after each epoch."""
    readers = []
    for rank in range(RANKS):
        dataset = dataset_of(rank)
        readers.append((dataset, sampler_of(rank, dataset), Rows()))
    alarms, memory = list[Alarm](), Memory()
    for epoch in range(epochs):
        posts = made_posts(ranks=RANKS)
        for post, (dataset, sampler, rows) in zip(posts, readers, strict=True):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            rows.begin()
            read(rows, DataLoader(dataset, BATCH, sampler=sampler), checked=True)
            post.check, post.data.epochs = epoch + 1, rows.samples()
        alarms += [alarm for alarm in judge(posts, memory) if alarm.check == "samples"]
    return alarms


def distributed(rank: int, dataset: Any, seed: int = 0) -> Any:
    return DistributedSampler(dataset, RANKS, rank, seed=seed)


def test_ranks_that_shuffle_with_other_seeds_are_told() -> None:
    alarms = alarms_of(lambda rank, dataset: distributed(rank, dataset, seed=rank))

    assert {(alarm.kind, tuple(alarm.ranks)) for alarm in alarms} == {("shared", (0, 1))}
    assert "of epoch" in alarms[0].text


@pytest.mark.parametrize("count", [48, 45, 8, 9, 3])
def test_ranks_that_shuffle_alike_are_right(count: int) -> None:
    assert alarms_of(distributed, lambda rank: Numbers(count), epochs=6) == []


def test_ranks_that_read_all_rows_are_no_split() -> None:
    def shuffled(rank: int, dataset: Any) -> Any:
        return distributed(0, dataset, seed=rank)

    assert alarms_of(lambda rank, dataset: torch.utils.data.RandomSampler(dataset)) == []
    assert alarms_of(shuffled)  # the same number of rows as a split has


def test_samples_of_ranks_meet() -> None:
    first, second = EpochRows(20000), EpochRows(20000)
    for start in range(0, 10000, 100):
        first.add(list(range(start, start + 100)))
        second.add(list(range(start + 5000, start + 5100)))

    assert len(first.sample) <= SAMPLE
    assert len(first.sample & second.sample) > SAMPLE / 8
    assert not first.repeats
    assert first.surprise > 1000


SIZE = 24


def order(seed: int) -> list[int]:
    return torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed)).tolist()


def begun(rows: Rows, batches: int, ahead: int = 0) -> list[Pass]:
    """The epoch that a training has begun when it saves, after so many batches."""
    loader = DataLoader(Numbers(SIZE), BATCH, sampler=OneOrder(order(0)))
    iterator = told_iterator(rows, loader)
    waiting = []
    for batch in islice(iterator, batches + ahead):
        rows.batch(iterator, batch, False)
        waiting.append(batch)
        if len(waiting) > ahead:
            rows.backward()
    return rows.begun()


def told_after(saved: Sequence[Pass], later: list[int]) -> list[str]:
    """The kinds of alarms of a training that goes on with these rows."""
    rows, memory = Rows(), Memory(data=RowMemory(begun=list(saved)))
    rows.restart(goes_on=True)
    read(rows, DataLoader(Numbers(SIZE), BATCH, sampler=OneOrder(later)))
    return kinds_of_posts([Post(0, 0, 1, data=RowFacts(passes=rows.passes()))], memory)


@pytest.mark.parametrize(
    ("batches", "ahead", "later", "kinds"),
    [
        (2, 0, order(0)[2 * BATCH :], []),
        (2, 2, order(0)[2 * BATCH :], []),
        (3, 0, order(1)[3 * BATCH :], ["resume"]),
        (3, 0, [*order(0)[:1], *order(0)[3 * BATCH + 1 :]], []),  # a step that was not saved
        (3, 0, order(0)[2 * BATCH :], []),
        (3, 0, order(0), []),  # the epoch begins again
        (3, 0, order(1), []),
        (3, 0, [order(1)[3 * BATCH], *order(1)[3 * BATCH : -1]], []),  # a sampler repeats rows
    ],
)
def test_rest_of_an_epoch_has_the_same_order(
    batches: int, ahead: int, later: list[int], kinds: list[str]
) -> None:
    saved = begun(Rows(), batches, ahead)
    assert [one.rows for one in saved] == [batches * BATCH]
    assert told_after(saved, later) == kinds


def test_epoch_that_was_over_at_the_save_says_nothing() -> None:
    assert begun(Rows(), SIZE // BATCH) == []
    assert begun(Rows(), 0, 2) == []


@pytest.mark.parametrize(
    ("before", "later", "is_whole", "kinds"),
    [
        (0, 0, True, ["replayed"]),
        (0, 1, True, []),
        (0, 0, False, []),  # a loop that loads parts of it may train the epoch again
    ],
)
def test_epoch_after_a_load_has_another_order_than_the_one_before_the_save(
    before: int, later: int, is_whole: bool, kinds: list[str]
) -> None:
    first, second = Rows(), Rows()
    read(first, DataLoader(Numbers(SIZE), BATCH, sampler=OneOrder(order(before))))
    second.restart(goes_on=True)
    read(second, DataLoader(Numbers(SIZE), BATCH, sampler=OneOrder(order(later))))
    memory = Memory(data=RowMemory(orders=first.orders() if is_whole else []))
    post = Post(0, 0, 1, data=RowFacts(orders=second.resumed_orders()))
    assert kinds_of_posts([post], memory) == kinds
    assert second.resumed_orders() == []


def test_epoch_in_its_middle_has_no_order_to_compare() -> None:
    rows = Rows()
    begun(rows, 2)
    assert rows.orders() == []
