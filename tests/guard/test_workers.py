"""Workers of a loader draw other random numbers than each other, and in each epoch, and split a
stream."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from harness.rank import events
from harness.rank.guard.data.rows import Rows
from harness.rank.guard.data.workers import SLOT, WorkerNumbers, has_drawn, state_of


class Noise(Dataset[Any]):
    """Rows that are random numbers."""

    def __init__(self, draw: Callable[[Any], float]) -> None:
        self.draw = draw
        self.own = numpy.random.default_rng(0)
        self.transforms = [random.Random(3)]
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([self.draw(self), 0.0])


def of_torch(_: Any) -> float:
    return float(torch.rand(()))


def of_python(_: Any) -> float:
    return random.random()


def of_numpy(_: Any) -> float:
    return float(numpy.random.rand())


def of_dataset(noise: Noise) -> float:
    return float(noise.own.random())


def of_transform(noise: Noise) -> float:
    return noise.transforms[0].random()


def of_generator(noise: Noise) -> float:
    return float(torch.rand((), generator=noise.generator))


def seeded_for_each_row(noise: Noise) -> float:
    numpy.random.seed(7)
    noise.generator.manual_seed(8)
    torch.manual_seed(9)
    return of_numpy(noise) + of_generator(noise) + of_torch(noise)


def none(_: Any) -> float:
    return 1.0


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rows]:
    """The rows of this process's loaders, as guard follows them."""
    rows, instrument = Rows(), events.Instrument()
    monkeypatch.setattr("harness.rank.guard.data.rows.instrument", instrument)
    rows.subscribe(lambda handler: handler, is_alive=lambda: True, is_checked=lambda: False)
    yield rows
    for subscriptions in list(instrument._subscriptions.values()):
        for subscription in list(subscriptions):
            subscription.end()


def train(rows: Rows, loader: Any, epochs: int = 2, batches: int | None = None) -> list[str]:
    """Read epochs of a loader; returns the kinds of alarms."""
    for _ in range(epochs):
        for _ in itertools.islice(loader, batches):
            rows.backward()
    return [alarm.kind for alarm in rows.alarms]


def workers(draw: Callable[[Any], float], init: Any = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Noise(draw), 2, num_workers=2, worker_init_fn=init, shuffle=True, **settings)


def alike(_: int) -> None:
    numpy.random.seed(0)
    random.seed(0)
    torch.manual_seed(0)


def by_worker(worker: int) -> None:
    numpy.random.seed(worker)
    random.seed(worker)
    torch.manual_seed(worker)


def by_one_half(worker: int) -> None:
    """As Lightning seeded: the epoch is in the half that torch does not use."""
    torch.manual_seed((torch.initial_seed() % 2**31) * 2**32 + worker)


def seeds_its_dataset(worker: int) -> None:
    get_worker_info().dataset.own = numpy.random.default_rng([worker, torch.initial_seed()])  # type: ignore[union-attr]


SAME = "workers 0 and 1 of a loader draw the same random numbers: "
AGAIN = "draw the random numbers of epoch 1 again in epoch 2"


@pytest.mark.parametrize(
    ("draw", "init", "kinds", "words"),
    [
        (of_torch, None, [], ""),
        (of_python, None, [], ""),
        (of_numpy, None, [], ""),
        (none, None, [], ""),
        (of_torch, alike, ["workers"], f"{SAME}torch's"),
        (of_python, alike, ["workers"], f"{SAME}python's"),
        (of_numpy, alike, ["workers"], f"{SAME}numpy's"),
        (of_torch, by_worker, ["numbers"], AGAIN),
        (of_python, by_worker, ["numbers"], AGAIN),
        (of_numpy, by_worker, ["numbers"], AGAIN),
        (of_torch, by_one_half, ["numbers"], AGAIN),
        (none, alike, [], ""),  # nobody draws
        (seeded_for_each_row, alike, [], ""),
        (of_dataset, None, ["workers"], "dataset."),  # a generator is copied to each worker
        (of_transform, None, ["workers"], "dataset."),
        (of_generator, None, ["workers"], "dataset."),
        (of_dataset, seeds_its_dataset, [], ""),
    ],
)
def test_workers_draw_other_numbers_than_each_other_and_in_each_epoch(
    rows: Rows, draw: Callable[[Any], float], init: Any, kinds: list[str], words: str
) -> None:
    loader = workers(draw, init)
    assert train(rows, loader, 1) == [kind for kind in kinds if kind == "workers"]
    assert train(rows, loader, 2) == kinds
    assert all(words in alarm.text.lower() for alarm in rows.alarms)


@pytest.mark.parametrize(("batches", "stay"), [(None, True), (5, False)])
def test_workers_that_stay_go_on_and_an_epoch_that_was_broken_off_may_begin_again(
    rows: Rows, batches: int | None, stay: bool
) -> None:
    loader = workers(of_numpy, by_worker, persistent_workers=stay)
    assert train(rows, loader, 3, batches) == []


def test_evaluation_may_repeat_its_numbers(rows: Rows) -> None:
    rows.backward = lambda: None  # type: ignore[method-assign]
    assert train(rows, workers(of_numpy, alike), 3) == []


def test_another_training_may_begin_with_the_same_numbers(rows: Rows) -> None:
    loader = workers(of_numpy, by_worker)
    train(rows, loader, 1)
    rows.restart()
    assert train(rows, loader, 1) == []


class Stream(IterableDataset[Any]):
    def __init__(self, count: int = 48, split: bool = False, shuffles: bool = False) -> None:
        self.count, self.split, self.shuffles = count, split, shuffles
        self.random = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        order = list(range(self.count))
        if self.shuffles:
            self.random.shuffle(order)
        if self.split and worker is not None:
            order = order[worker.id :: worker.num_workers]
        return (torch.tensor([row, 1]) for row in order)


@pytest.mark.parametrize(
    ("stream", "epochs", "kinds"),
    [
        (Stream(), 1, ["unsplit"]),
        (Stream(split=True), 2, []),
        (Stream(split=True, shuffles=True), 2, []),  # each takes its part of one order
    ],
)
def test_workers_split_a_stream(rows: Rows, stream: Any, epochs: int, kinds: list[str]) -> None:
    assert train(rows, DataLoader(stream, 2, num_workers=2), epochs) == kinds


@pytest.mark.parametrize(("shift", "alarms"), [(0, ["workers"]), (1, [])])
def test_stream_whose_workers_choose_sources_alike_is_told(
    rows: Rows, shift: int, alarms: list[str]
) -> None:
    """They do in datasets before 4.4.0, which shifts the generators of each worker. That a new
    epoch chooses as the one before, without set_epoch(), is not told."""

    class Mixed(Stream):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            seed = 5 + shift * (worker.id if worker else 0)
            rows.numbers.worker_mixes(numpy.random.default_rng(seed))
            return super().__iter__()

    loader = DataLoader(Mixed(split=True), 2, num_workers=2)
    assert train(rows, loader, 2) == alarms


BITS = (numpy.random.PCG64, numpy.random.Philox, numpy.random.MT19937)
GENERATORS: list[Callable[[int], Any]] = [
    random.Random,
    numpy.random.RandomState,
    *(lambda seed, bits=bits: numpy.random.Generator(bits(seed)) for bits in BITS),
]


@pytest.mark.parametrize("count", [1, 1000, 100_000])
@pytest.mark.parametrize("make", GENERATORS)
def test_draws_are_no_new_seed(make: Callable[[int], Any], count: int) -> None:
    """A dataset may make a new generator of numpy in each worker, at its first row."""
    generator = make(1)
    draw = getattr(generator, "random", None) or generator.rand
    before, seeded = state_of(generator), state_of(make(5))
    for _ in range(count):
        draw()
    drawn = state_of(generator)
    assert before is not None
    assert drawn is not None
    assert seeded is not None
    assert has_drawn(before, drawn)
    assert not has_drawn(before, before)
    assert not has_drawn(before, seeded)


class StartingIterator:
    """What starts workers."""

    _num_workers, _base_seed = 2, 5


def test_where_memory_is_full_workers_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write into memory that is not there would end the worker."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    iterator, numbers, files = StartingIterator(), WorkerNumbers(), os.listdir("/proc/self/fd")
    numbers.begin(iterator)
    assert numbers.of(iterator) == {}
    assert os.listdir("/proc/self/fd") == files


def test_a_worker_opens_no_file_that_another_user_may_have_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = SimpleNamespace(id=1, num_workers=2, seed=6)
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: info)
    process = SimpleNamespace(pid=os.getpid())
    monkeypatch.setattr("harness.rank.guard.data.workers.parent_process", lambda: process)
    decoy = Path(f"/dev/shm/guard-workers-{os.getpid()}-5")
    decoy.write_bytes(bytes(2 * SLOT))

    def read_a_batch() -> None:
        worker, dataset = WorkerNumbers(), Noise(none)
        worker.worker_begins(dataset)
        for _ in range(2):
            torch.rand(1)
            worker.worker_has_read(dataset)

    try:
        read_a_batch()
        iterator, numbers = StartingIterator(), WorkerNumbers()
        numbers.begin(iterator)
        read_a_batch()
        assert not any(decoy.read_bytes())
    finally:
        decoy.unlink()
    assert list(numbers.of(iterator)) == [1]
    assert "torch's generator" in numbers.of(iterator)[1]
