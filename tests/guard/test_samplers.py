"""Epochs of several ranks together: each row comes equally often, and another epoch has others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from harness.rank.guard.checks.samples import samples
from harness.rank.guard.checks.views import Memory, View
from harness.rank.guard.data.rows import Rows
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Post, RowFacts
from tests.guard.test_rows import Numbers, kinds, read

BATCH, RANKS = 2, 2


class Part(Sampler[int]):
    """Another part of the rows in each epoch."""

    def __init__(self, count: int, parts: int = 3) -> None:
        self.count, self.parts, self.epoch = count, parts, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count // self.parts

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._begin(), self.count, self.parts))

    def _begin(self) -> int:
        return self.epoch % self.parts


class Shuffled(Part):
    """All rows, in another order in each epoch."""

    def __init__(self, count: int) -> None:
        super().__init__(count, 1)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.count, generator=generator).tolist())


class Counting(Part):
    """Counts the epochs itself, unless somebody tells it."""

    def __iter__(self) -> Iterator[int]:
        rows = super().__iter__()
        self.epoch += 1
        return rows


class Deaf(Part):
    """Has a ``set_epoch`` because others have."""

    def _begin(self) -> int:
        return 0


class InOrder(Shuffled):
    """Could shuffle."""

    shuffled = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.do_shuffle = False

    def __iter__(self) -> Iterator[int]:
        return super().__iter__() if self.do_shuffle else iter(range(self.count))


class Wrapped(Dataset[int]):
    def __init__(self, sampler: Sampler[int]) -> None:
        self._sampler = sampler
        self._rows: list[int] = []

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def reset(self) -> None:
        self._rows = list(self._sampler)

    def __getitem__(self, at: int) -> int:
        return self._rows[at]


class Divided(DistributedSampler[int]):
    """Gives a rank its share of what another sampler gives, as Lightning's does."""

    def __init__(self, sampler: Sampler[int], rank: int) -> None:
        super().__init__(Wrapped(sampler), RANKS, rank)

    def __iter__(self) -> Iterator[int]:
        self.dataset.reset()  # type: ignore[attr-defined]
        return (self.dataset[at] for at in super().__iter__())


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
        views = [View(post, ParameterTable.of([]), None) for post in posts]
        alarms += [alarm.kind for alarm in samples(views, memory)]
    return [*alarms, *memory.not_seen]


def tell(sampler: Any, epoch: int) -> None:
    sampler.set_epoch(epoch)


def tell_inner(sampler: Any, epoch: int) -> None:
    sampler.set_epoch(epoch)
    sampler.dataset._sampler.set_epoch(epoch)


def test_sampler_that_a_wrapper_does_not_tell_the_epoch_is_named() -> None:
    divided = [Divided(Part(24), rank) for rank in range(RANKS)]

    assert alarm_kinds(divided, tells=tell)[:1] == ["stuck"]


@pytest.mark.parametrize("kind", [Part, Counting, Shuffled, Deaf, InOrder])
def test_sampler_that_is_told_the_epoch_is_right(kind: Any) -> None:
    assert alarm_kinds([Divided(kind(24), rank) for rank in range(RANKS)], tells=tell_inner) == []


@pytest.mark.parametrize("kind", [Counting, Shuffled, Deaf, InOrder])
def test_sampler_that_need_not_be_told_the_epoch_is_right(kind: Any) -> None:
    """A wrapper shuffles what it gives."""
    assert alarm_kinds([Divided(kind(24), rank) for rank in range(RANKS)], tells=tell) == []


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


def test_ranks_may_read_all_rows_each_in_its_own_order() -> None:
    samplers = [
        RandomSampler(Numbers(), generator=torch.Generator().manual_seed(rank))
        for rank in range(RANKS)
    ]
    assert alarm_kinds(samplers) == []


def test_ranks_may_draw_as_they_like() -> None:
    def generator(rank: int) -> torch.Generator:
        return torch.Generator().manual_seed(rank)

    every = range(RANKS)
    assert (
        alarm_kinds([WeightedRandomSampler([1.0] * 24, 12, generator=generator(r)) for r in every])
        == []
    )
    assert alarm_kinds([RandomSampler(Numbers(), True, 12, generator(r)) for r in every]) == []
    assert alarm_kinds([RandomSampler(Numbers(), False, 12, generator(r)) for r in every]) == []
    assert alarm_kinds([SubsetRandomSampler(range(4, 16), generator(r)) for r in every]) == []


def test_ranks_may_have_datasets_of_their_own() -> None:
    ranks = [Rows() for _ in range(RANKS)]
    memory = Memory()
    for rank, rows in enumerate(ranks):
        data = Subset(Numbers(48), range(rank, 48, RANKS))
        read(rows, DataLoader(data, BATCH, shuffle=True), epochs=2)
    views = [
        View(Post(r, 0, 1, data=RowFacts(passes=rows.passes())), ParameterTable.of([]), None)
        for r, rows in enumerate(ranks)
    ]
    assert list(samples(views, memory)) == []
