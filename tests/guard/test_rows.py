"""The rows of loaders: the same twice, or in the same order again; and too few epochs of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from harness.rank.guard.data.epochs import FIRST_BATCHES, missing_epochs
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


def of_order(order: list[int], size: int = 4) -> DataLoader[Any]:
    return DataLoader(Numbers(1 + max(23, *order)), size, sampler=OneOrder(order))


def told_iterator(rows: Rows, loader: DataLoader[Any]) -> Any:
    """An iterator that tells which rows it draws, as torch's instrument does."""
    iterator: Any = iter(loader)
    draw = iterator._next_index

    def next_index() -> Any:
        index = draw()
        rows.drawn(iterator, index)
        return index

    iterator._next_index = next_index
    return iterator


def read(rows: Rows, loader: DataLoader[Any], epochs: int = 1, checked: bool = False) -> None:
    """Read a loader as torch's instrument tells it."""
    for _ in range(epochs):
        iterator = told_iterator(rows, loader)
        for batch in iterator:
            rows.batch(iterator, batch, checked)
            rows.backward()
            rows.stepped(0)


def kinds(alarms: list[Alarm]) -> list[str]:
    return [alarm.kind for alarm in alarms]


@pytest.mark.parametrize(
    ("loader", "epochs", "expected"),
    [
        (DataLoader(Numbers(), 4), 3, []),  # nobody asked for another order
        (of_order([*range(24), *range(8)]), 1, ["again"]),  # a batch comes twice in an epoch
        (of_order([*range(2400), *range(800)], 400), 1, ["again"]),  # more than a float can count
        # GRPO generates several answers to a row, and trains on them several times.
        (of_order([3, 3, 1, 1, 2, 2, 0, 0] * 3), 1, []),
        (of_order(list(range(4 * (FIRST_BATCHES - 1)))), 3, []),  # short epochs
    ],
)
def test_batches_and_orders_that_come_again(
    loader: DataLoader[Any], epochs: int, expected: list[str]
) -> None:
    rows = Rows()
    read(rows, loader, epochs)
    assert kinds(rows.alarms) == expected


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
    rows, loader = Rows(), of_order([3, 1, 2, 0, *range(4, 24)])
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


@pytest.mark.parametrize(
    ("requested_epochs", "most_steps", "epoch", "step", "planned", "is_told"),
    [
        (10, -1, 8.0, 20, 20, True),
        (10, -1, 10.0, 30, 30, False),
        (3, -1, 2.99, 300, 300, False),  # the rest of an epoch is dropped
        (1, -1, 0.9, 9, 9, False),  # less than a step
        (10, -1, 4.0, 12, 30, False),  # a callback has stopped it
        (10, 20, 8.0, 20, 20, False),  # a number of steps was asked for
        (10, -1, None, 0, 0, False),
    ],
)
def test_trainer_that_planned_too_few_steps_is_told(
    requested_epochs: float, most_steps: int, epoch: float, step: int, planned: int, is_told: bool
) -> None:
    settings = SimpleNamespace(num_train_epochs=requested_epochs, max_steps=most_steps)
    state = SimpleNamespace(epoch=epoch, global_step=step, max_steps=planned)
    assert [one.kind for one in missing_epochs(settings, state)] == ["short"] * is_told
