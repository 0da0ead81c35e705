"""After a load, the rest of an epoch has none of the rows that came before the save."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from harness.rank.guard.checks.samples import samples
from harness.rank.guard.checks.views import Memory, RowMemory, View
from harness.rank.guard.data.rows import Rows
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Pass, Post, RowFacts
from tests.guard.test_rows import Numbers, OneOrder, read

SIZE, BATCH = 24, 4


def order(seed: int) -> list[int]:
    return torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed)).tolist()


def begun(rows: Rows, batches: int, ahead: int = 0) -> list[Pass]:
    """The epoch that a training has begun when it saves, after so many batches."""
    iterator = iter(DataLoader(Numbers(SIZE), BATCH, sampler=OneOrder(order(0))))
    draws = iterator._next_index

    def next_index() -> list[int]:
        index: list[int] = draws()
        rows.drawn(iterator, index)
        return index

    iterator._next_index = next_index  # type: ignore[method-assign]
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
    post = Post(0, 0, 1, data=RowFacts(passes=rows.passes()))
    return [alarm.kind for alarm in samples([View(post, ParameterTable.of([]), None)], memory)]


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
    view = View(post, ParameterTable.of([]), None)
    assert [alarm.kind for alarm in samples([view], memory)] == kinds
    assert second.resumed_orders() == []


def test_epoch_in_its_middle_has_no_order_to_compare() -> None:
    rows = Rows()
    begun(rows, 2)
    assert rows.orders() == []
