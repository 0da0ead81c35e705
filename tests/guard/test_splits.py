"""Epochs of a dataset that the ranks split: no row is read by two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

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
