"""Epochs of several ranks together: each row comes equally often, and another epoch has others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from harness.rank.guard.checks.samples import samples
from harness.rank.guard.checks.views import Memory, View
from harness.rank.guard.data.rows import Rows
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Post, RowFacts
from tests.guard.test_rows import Numbers, kinds, read

BATCH, RANKS = 2, 2


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
