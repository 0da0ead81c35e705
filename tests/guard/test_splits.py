"""Epochs of a dataset that the ranks split: no row is read by two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.data.epochs import SAMPLE, EpochRows
from harness.rank.guard.data.rows import Rows
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Alarm
from tests.guard.judging import made_posts
from tests.guard.test_rows import Numbers, read

RANKS, BATCH = 2, 4

Samplers = Callable[[int, Any], Any]
"""The sampler of a rank for a dataset."""


@pytest.fixture(autouse=True)
def _several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))


def alarms_of(
    sampler_of: Samplers,
    dataset_of: Callable[[int], Any] = lambda rank: Numbers(48),
    epochs: int = 3,
    between: Callable[[int, Rows, Any], None] = lambda rank, rows, dataset: None,
) -> list[Alarm]:
    """What is told after each epoch."""
    readers = []
    for rank in range(RANKS):
        dataset = dataset_of(rank)
        readers.append((rank, dataset, sampler_of(rank, dataset), Rows()))
    alarms, memory = list[Alarm](), Memory()
    for epoch in range(epochs):
        posts = made_posts(ranks=RANKS)
        for post, (rank, dataset, sampler, rows) in zip(posts, readers, strict=True):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            rows.begin()
            read(rows, DataLoader(dataset, BATCH, sampler=sampler), checked=True)
            post.check, post.data.epochs = epoch + 1, rows.samples()
            between(rank, rows, dataset)
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


class Draws(Sampler[int]):
    """As many rows as a split has, each drawn from all."""

    def __init__(self, rank: int, dataset: Any) -> None:
        self.generator, self.count = torch.Generator().manual_seed(rank), len(dataset)

    def __len__(self) -> int:
        return self.count // RANKS

    def __iter__(self) -> Iterator[int]:
        for _ in range(len(self)):
            yield int(torch.randint(0, self.count, (), generator=self.generator))


def test_rows_that_are_drawn_again_are_right() -> None:
    assert alarms_of(Draws) == []


def test_ranks_that_read_all_rows_are_no_split() -> None:
    def shuffled(rank: int, dataset: Any) -> Any:
        return distributed(0, dataset, seed=rank)

    assert alarms_of(lambda rank, dataset: torch.utils.data.RandomSampler(dataset)) == []
    assert alarms_of(shuffled)  # the same number of rows as a split has


class Varied(Numbers):
    """Each reading of a row is another one, as with repeated augmentation."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, torch.rand(())])


def test_rows_that_vary_are_not_known_by_their_numbers() -> None:
    def same_rows(rank: int, dataset: Any) -> Any:
        return distributed(0, dataset)

    assert alarms_of(same_rows, Varied) == []
    assert alarms_of(same_rows)


def test_evaluation_on_one_rank_is_no_epoch_of_the_training() -> None:
    def evaluate(rank: int, rows: Rows, dataset: Any) -> None:
        rows_of_evaluation = distributed(1 - rank, dataset)
        backward, rows.backward = rows.backward, lambda: None  # type: ignore[method-assign]
        for _ in range(1 - rank):
            read(rows, DataLoader(dataset, BATCH, sampler=rows_of_evaluation))
        rows.backward = backward  # type: ignore[method-assign]

    assert alarms_of(distributed, between=evaluate) == []


class Endless(Sampler[int]):
    """Goes on after its end, with another order."""

    def __init__(self, rank: int, dataset: Any) -> None:
        self.rank, self.count = rank, len(dataset)

    def __len__(self) -> int:
        return self.count // RANKS - 2

    def __iter__(self) -> Iterator[int]:
        for seed in range(4):
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed))
            yield from order[self.rank :: RANKS].tolist()


def test_epoch_that_goes_on_after_its_end_is_not_compared() -> None:
    assert alarms_of(Endless) == []


def test_samples_of_ranks_meet() -> None:
    first, second = EpochRows(20000), EpochRows(20000)
    for start in range(0, 10000, 100):
        first.add(list(range(start, start + 100)))
        second.add(list(range(start + 5000, start + 5100)))

    assert len(first.sample) <= SAMPLE
    assert len(first.sample & second.sample) > SAMPLE / 8
    assert not first.repeats
    assert first.surprise > 1000
