"""The rows of loaders: the same twice, or in the same order again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from harness.rank.guard.data.epochs import FIRST_BATCHES
from harness.rank.guard.data.rows import Rows, digests
from harness.rank.guard.posting.posts import Alarm


class Numbers(Dataset[Any]):
    def __init__(self, count: int = 24) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, 0])


class OneOrder(torch.utils.data.Sampler[int]):
    """Says that it shuffles, and gives one order; or gives rows twice."""

    shuffle = True
    __module__ = "torch.utils.data"  # a batch that a sampler of the user's own repeats is no fault

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def read(rows: Rows, loader: DataLoader[Any], epochs: int = 1, checked: bool = False) -> None:
    """Read a loader as torch's instrument tells it."""
    for _ in range(epochs):
        iterator = iter(loader)
        draw = iterator._next_index

        def next_index(iterator: Any = iterator, draw: Any = draw) -> Any:
            index = draw()
            rows.drawn(iterator, index)
            return index

        iterator._next_index = next_index  # type: ignore[method-assign]
        for batch in iterator:
            rows.batch(iterator, batch, checked)
            rows.backward()
            rows.stepped(0)


def kinds(alarms: list[Alarm]) -> list[str]:
    return [alarm.kind for alarm in alarms]


def test_sequential_epochs_are_right() -> None:
    """Nobody asked for another order."""
    rows = Rows()
    read(rows, DataLoader(Numbers(), 4), epochs=3)
    assert rows.alarms == []


@pytest.mark.parametrize("size", [4, 400])  # more orders than a float can count
def test_batch_that_comes_twice_in_an_epoch_is_told_once(size: int) -> None:
    order = [*range(6 * size), *range(2 * size)]
    rows = Rows()
    read(rows, DataLoader(Numbers(6 * size), size, sampler=OneOrder(order)))
    assert kinds(rows.alarms) == ["again"]


def test_sampler_that_repeats_rows_may_repeat_batches() -> None:
    """GRPO generates several answers to a row, and trains on them several times."""
    rows = Rows()
    read(rows, DataLoader(Numbers(), 4, sampler=OneOrder([3, 3, 1, 1, 2, 2, 0, 0] * 3)))
    assert rows.alarms == []


def test_short_epochs_are_not_compared() -> None:
    rows = Rows()
    loader = DataLoader(Numbers(), 4, sampler=OneOrder(list(range(4 * (FIRST_BATCHES - 1)))))
    read(rows, loader, epochs=3)
    assert rows.alarms == []


def test_rows_of_a_checked_step_are_their_values() -> None:
    """Not their numbers: each rank may have a dataset of its own."""
    rows = Rows()
    read(rows, DataLoader(Numbers(8), 4), checked=True)
    assert [number for number, _ in rows.of_step()] == [0, 0]
    assert len({row for _, batch in rows.of_step() for row in batch}) == 8
    rows.begin()
    assert rows.of_step() == []


def test_rows_of_an_evaluation_are_not_among_those_of_the_step() -> None:
    rows = Rows()
    iterator = iter(DataLoader(Numbers(8), 4))
    rows.drawn(iterator, [0, 1])
    rows.batch(iterator, None, True)
    assert rows.of_step() == []


def test_rows_of_a_stream_are_digests() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from (torch.tensor([number, 0]) for number in (1, 2, 1, 3))

    rows = Rows()
    read(rows, DataLoader(Stream(), 2), checked=True)
    (_, first), (_, second) = rows.of_step()
    assert first[0] == second[0]
    assert len({*first, *second}) == 3


def test_evaluation_may_repeat_an_order() -> None:
    order = [3, 1, 2, 0, *range(4, 24)]
    rows, loader = Rows(), DataLoader(Numbers(), 4, sampler=OneOrder(order))
    rows.backward = lambda: None  # type: ignore[method-assign]
    read(rows, loader, epochs=4)
    assert rows.alarms == []


def test_digests_are_those_of_all_tensors() -> None:
    """A mask or a label alone says little about a row."""
    mask, table = torch.ones(3, 2), torch.arange(6).reshape(3, 2)
    one, other = digests({"a": mask, "b": table}), digests([[mask, table], 5])
    assert one == other
    assert len(set(one)) == 3
    assert not set(one) & set(digests([mask, table + 9]))
    assert digests("text") == digests([]) == digests(torch.tensor(3.0)) == []


def labels(*words: int, padding: int = 0) -> dict[str, Any]:
    """A batch of one row, with padding whose labels are masked."""
    row = torch.tensor([[*words, *[-100] * padding]])
    return {"labels": row, "attention_mask": (torch.arange(row.shape[1])[None] < len(words)).int()}


@pytest.mark.parametrize(
    ("setting", "batches", "is_told"),
    [
        ("assistant_only_loss", [labels(1, 2), labels(1, 2, padding=1)] * 2, True),
        ("assistant_only_loss", [labels(1, 2)] * 3, False),
        ("assistant_only_loss", [labels(1, 2)] * 3 + [labels(-100, 2)], False),
        ("", [labels(1, 2)] * 4, False),
        ("assistant_only_loss", [torch.ones(2, 2)] * 4, False),
    ],
)
def test_labels_that_a_setting_masks_are_masked(
    setting: str, batches: list[Any], is_told: bool
) -> None:
    rows, loader = Rows(), DataLoader(Numbers())
    for batch in batches:
        rows.batch(iter(loader), batch, True)
    alarm = rows.unmasked(setting)
    assert (alarm.kind if alarm else "") == ("unmasked" if is_told else "")
