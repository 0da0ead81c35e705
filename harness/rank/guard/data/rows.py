"""Which rows the loaders of this rank give: a hash of each batch, and rows of checked steps."""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ....detectors.rows import IGNORED
from ...events import (
    Batch,
    DrawnIndex,
    Fetch,
    MixedStream,
    NewFetcher,
    NewIterator,
    TrainerEnd,
    instrument,
)
from ..posting.posts import Alarm, EpochSample, Pass, Post, sampled_rows
from ..process import is_worker
from ..sampling.samples import tensors_in
from .epochs import FIRST_BATCHES, Epoch, EpochRows, missing_epochs, sample_of_step, splits
from .samplers import batches_of, draws_again, is_installed, shuffles, told_epochs
from .workers import ROUNDS, EpochDraws, Rounds, WorkerNumbers, compared_draws, is_stream

MOST_ROWS = 512
"""Rows of a step that are compared with those of other ranks: a limit of a post's size."""
MOST_TENSORS, MOST_VALUES = 4, 128
"""Tensors, and values of each, that make the digest of a row: the first one may be a label or a
mask, as in the right loops ``rows.stream_with_labels_first`` and
``rows.stream_with_masks_first``."""
MOST_BATCHES = 1 << 16
"""Batches of an epoch that are remembered: a limit of memory."""
CHANCE = 1e-4
"""A sampler that draws with replacement gives a batch again so seldom that it is a fault (birthday
problem). The right loop ``rows.own_draws`` draws pairs of 16 rows, so a pair comes again in the
first 20 batches or so."""
LEAST_ORDERS = math.log(1e7)
"""The logarithm of how many orders the rows of an epoch have at least, if they are compared. In the
right loop ``rows.rows_of_tiny_epochs`` they have 24, so that each 24th epoch has the order
before."""
LEAST_UNMASKED = 4
"""Batches without a masked label that make a fault: a row may have no prompt."""


class Loader:
    """The order in which a dataset is read."""

    def __init__(self, dataset: Any, number: int, goes_on: bool) -> None:
        self.dataset = weakref.ref(dataset) if hasattr(dataset, "__weakref__") else lambda: dataset
        self.number = number
        self.trains = False
        """Whether a backward followed one of its batches."""
        self._is_stream = is_stream(dataset)
        self._size = 0
        self._sampled: set[int] = set()
        self._epochs: weakref.WeakKeyDictionary[Any, Epoch] = weakref.WeakKeyDictionary()
        self._count = 0
        self._last: Epoch | None = None
        """The epoch of the last batch."""
        self._surprise = 0.0
        """How improbable it is by chance that no row came twice in the epochs before the last."""
        self._splits = True
        """Whether no epoch so far says that ranks do not split the dataset."""
        self._trained: Epoch | None = None
        """The last epoch that trains, ..."""
        self._before: Epoch | None = None
        """... and the one before."""
        self._open: list[Epoch] = []
        """The first epochs after a load, of which rank 0 has not learned yet."""
        self._goes_on = goes_on
        """Whether the next one may be the rest of one that began before a save."""
        self._resumed: Epoch | None = None
        """The first epoch after a load, until rank 0 has learned with which rows it begins."""
        self._iterator: Callable[[], Any] = lambda: None
        """The last iterator whose batches train, ..."""
        self._iterators = 0
        """... how many there were, ..."""
        self._has_ended = self._was_whole = False
        """... whether it was read to its end, and whether the one before was."""
        self._draws: EpochDraws | None = None
        """The random numbers of the workers in the last epoch that was compared."""
        self._repeats = False
        """Whether a batch has a row twice: its sampler repeats, or draws with replacement."""
        self._again: Alarm | None = None
        """What is told if the last batch trains."""
        self._unsplit: Alarm | None = None
        """What is told when a batch trains."""
        self._shuffles = self._told = False

    def restart(self, goes_on: bool) -> None:
        """Compare with no earlier epoch: another training begins, or one goes on after a load."""
        self._goes_on = goes_on
        self._trained = self._before = None
        self._has_ended, self._open = False, []
        self._draws = None

    def read(self, rows: list[int], iterator: Any) -> None:
        """Note the indices of a batch."""
        epoch = self._epochs.get(iterator)
        if epoch is None or epoch.is_over:
            epoch = self._epochs[iterator] = self._begin(iterator)
        self._last, self._again = epoch, None
        batch = hash(tuple(rows))
        epoch.add(rows, batch, self._sampled)
        if epoch.length is not None and getattr(iterator, "_num_yielded", 0) > epoch.length:
            self._splits = False  # it goes on after its end, so nobody knows where an epoch begins
        self._repeats = self._repeats or len(set(rows)) < len(rows) or draws_again(iterator)
        within = epoch.length is not None or epoch.rows <= self._size / int(
            os.environ.get("WORLD_SIZE") or 1
        )
        is_again = batch in epoch.seen and within and not self._repeats
        # A sampler that draws from all rows hardly gives this batch again: so many were different.
        orders = len(rows) * math.log(max(2, epoch.rows - len(rows)))
        is_no_chance = 2 * math.log(epoch.batches) - math.log(2) < math.log(CHANCE) + orders
        if is_again and is_no_chance and is_installed(iterator):
            row_list = ", ".join(map(str, rows[:4]))
            text = f"the rows {row_list}, ... came twice in epoch {epoch.number}"
            self._again = Alarm("samples", "again", text)
        if len(epoch.seen) < MOST_BATCHES:
            epoch.seen.add(batch)

    def _begin(self, iterator: Any) -> Epoch:
        self._count += 1
        size = _length(self.dataset())
        if size != self._size:
            self._size, self._sampled = size, set(sampled_rows(size))
        self._shuffles = shuffles(iterator)
        told: list[Any] = []
        with contextlib.suppress(Exception):  # a stranger's code
            told = told_epochs(iterator)
        length = batches_of(iterator)
        if length is not None and iterator not in self._epochs:  # torchdata's goes on after a load
            length -= max(0, getattr(iterator, "_num_yielded", 1) - 1)
        epoch = Epoch(self._count, length, told)
        split_rows = splits(iterator, self.dataset())
        epoch.part = EpochRows(split_rows) if split_rows else None
        return epoch

    def read_stream(self, alarm: Alarm | None) -> None:
        """Note what was seen in a batch of a stream."""
        self._unsplit = self._unsplit or alarm

    def ended(self, iterator: Any) -> None:
        """Note that an iterator has no batch any more."""
        self._has_ended = self._has_ended or self._iterator() is iterator

    def trained(self, iterator: Any, numbers: WorkerNumbers) -> Alarm | None:
        """Note that a backward begins with the last batch: an evaluation may read as it likes."""
        self.trains = True
        epoch, alarm = self._last, self._again or self._unsplit
        self._again = self._unsplit = None
        if self._iterator() is not iterator:
            self._was_whole = self._has_ended or (
                self._trained is not None and self._trained.is_over
            )
            self._iterator, self._has_ended = weakref.ref(iterator), False
            self._iterators += 1
        if epoch is not None and not epoch.training:
            self._begin_training(epoch)
        if epoch is not None:
            epoch.backwards += 1
        is_known = epoch is not None and len(epoch.first) == FIRST_BATCHES and epoch.steppers
        if epoch is not None and is_known and not epoch.has_begun:
            epoch.has_begun = True
            alarm = alarm or self._compare_order(epoch)
        alarm = alarm or self._compare_numbers(iterator, epoch, numbers)
        if self._told:
            return None
        self._told = alarm is not None
        return alarm

    def _begin_training(self, epoch: Epoch) -> None:
        before = self._before = self._trained
        self._trained = epoch
        epoch.training = before.training + 1 if before else 1
        if before is not None:
            epoch.is_stuck = any(one in before.told for one in epoch.told)
        if before is not None and before.part is not None:
            self._surprise += before.part.surprise
            self._splits = self._splits and not before.part.repeats
        epoch.goes_on, self._goes_on = self._goes_on, False
        self._resumed = epoch if epoch.goes_on else self._resumed
        self._open += [epoch] if epoch.goes_on else []

    def _compare_order(self, epoch: Epoch) -> Alarm | None:
        before = self._before if epoch is self._trained else None
        shuffles = self._shuffles or (epoch.is_stuck and not epoch.is_sorted)
        if before is None or before.first != epoch.first or not shuffles:
            return None
        if before.steppers.isdisjoint(epoch.steppers):
            return None  # two models train on one dataset, or an epoch is read for another end
        if not _has_orders(before) and not _has_orders(epoch):
            return None  # so few rows have this order again by chance
        text = (
            f"epoch {epoch.number} of a loader begins with the same rows in the same order "
            "as the epoch before (set_epoch?)"
        )
        return Alarm("samples", "order", text)

    def _compare_numbers(
        self, iterator: Any, epoch: Epoch | None, numbers: WorkerNumbers
    ) -> Alarm | None:
        workers = numbers.of(iterator)
        is_complete = len(workers) == getattr(iterator, "_num_workers", 0)
        if not workers or not (is_complete or (epoch is not None and epoch.is_over)):
            return None
        numbers.forget(iterator)
        before, self._draws = self._draws, (self._iterators, workers)
        return compared_draws(
            before if self._was_whole else None, self._iterators, workers, self._is_stream
        )

    def stepped(self, optimizer: int) -> None:
        """Note that an optimizer has taken a step."""
        if self._trained is not None and not self._trained.has_begun:
            self._trained.steppers.add(optimizer)

    def sample(self, step: dict[int, int]) -> EpochSample | None:
        """What this epoch has given so far, and the values of rows of this step by their numbers;
        None if nothing says that ranks split the dataset."""
        epoch = self._trained
        is_known = self._splits and not self._repeats
        if epoch is None or epoch.part is None or epoch.part.repeats or not is_known:
            return None
        surprise = self._surprise + epoch.part.surprise
        rows = sorted(epoch.part.sample)
        return EpochSample(self.number, epoch.training, surprise, rows, sample_of_step(step))

    def passes(self) -> Iterator[Pass]:
        """What rank 0 is to learn of the first epochs after a load that are over."""
        for epoch in [epoch for epoch in self._open if epoch.is_over]:
            self._open.remove(epoch)
            if not self._repeats:
                yield self._pass(epoch, epoch.rows, epoch.sampled)

    def begun(self) -> Iterator[Pass]:
        """The epoch that trains now, in its middle."""
        epoch = self._trained
        trained = epoch.trained_rows() if epoch is not None and not self._repeats else None
        if epoch is not None and trained is not None:
            yield self._pass(epoch, *trained)

    def order(self) -> list[int]:
        """The first batches of the last epoch that trained, if it is over and shuffled."""
        epoch = self._trained if self._shuffles else None
        return epoch.first if epoch is not None and epoch.is_over and _has_orders(epoch) else []

    def resumed_order(self) -> list[int]:
        """The first batches of the first epoch after a load; empty before these have trained."""
        if self._resumed is None or not self._resumed.has_begun:
            return []
        epoch, self._resumed = self._resumed, None
        return epoch.first

    def _pass(self, epoch: Epoch, rows: int, sampled: list[int]) -> Pass:
        return Pass(self.number, epoch.training, self._size, rows, epoch.largest, sampled)


def _has_orders(epoch: Epoch) -> bool:
    return math.lgamma(epoch.rows + 1) >= LEAST_ORDERS


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception:  # a stranger's code
        return 0


class Rows:
    """The rows that this rank has read. ``rounds`` batches of each worker are compared."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.loaders: list[Loader] = []
        self.alarms: list[Alarm] = []
        self.numbers = WorkerNumbers()
        self._rounds = Rounds(rounds)
        self._goes_on = False
        self._unmasked, self._has_masks = 0, False
        """Checked batches without a masked label, and whether another one had some."""
        self._count = 0
        self._indices: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._last: tuple[Loader, Callable[[], Any]] | None = None
        """The loader of the last batch, and its iterator."""
        self.begin()

    def subscribe(
        self,
        guarded: Callable[[Callable[[Any], None]], Callable[[Any], None]],
        is_alive: Callable[[], bool],
        is_checked: Callable[[], bool],
    ) -> None:
        """Subscribe to what loaders read, in the process that trains and in their workers.
        ``is_checked`` says whether the rows of the step that runs are compared."""
        on, numbers = instrument.on, self.numbers

        def is_trainer() -> bool:
            return is_alive() and not is_worker()

        def batch(event: Batch) -> None:
            if event.ended:
                self.ended(event.owner)
            else:
                self.batch(event.owner, event.value, is_checked())

        def drawn(event: DrawnIndex) -> None:
            self.drawn(event.owner, event.value)

        def trained(event: TrainerEnd) -> None:
            self.alarms += list(missing_epochs(*event.values[:2]))

        on(DrawnIndex, after=guarded(drawn), when=is_alive)
        on(Batch, after=guarded(batch), when=is_trainer)
        on(NewIterator, after=guarded(lambda event: numbers.begin(event.owner)), when=is_trainer)
        on(NewFetcher, before=lambda event: numbers.worker_begins(event.dataset), when=is_worker)
        on(Fetch, after=lambda event: numbers.worker_has_read(event.owner.dataset), when=is_worker)
        on(MixedStream, before=lambda event: numbers.worker_mixes(event.generator), when=is_worker)
        on(TrainerEnd, after=guarded(trained), when=is_alive)

    def describe(self, post: Post, masked_by: str) -> None:
        """Say in a post what was read. ``masked_by`` is the setting by which some labels are to be
        masked; empty if there is none."""
        alarm = self.unmasked(masked_by)
        post.alarms += [*([alarm] if alarm else []), *self.alarms]
        self.alarms = []
        post.data.rows, post.data.epochs = self.of_step(), self.samples()
        post.data.orders, post.data.passes = self.resumed_orders(), self.passes()

    def begin(self) -> None:
        """Forget the rows of the last step."""
        self._step: list[tuple[Loader, list[int]]] = []
        self._counts: dict[Loader, int] = {}
        self._values: dict[Loader, dict[int, int]] = {}
        """By the numbers of rows, their digests."""

    def restart(self, goes_on: bool = False) -> None:
        """Compare no epoch with those before: another training begins, or one goes on after a
        load."""
        self._goes_on = goes_on
        for loader in self.loaders:
            loader.restart(goes_on)

    def batches(self) -> int:
        """The batches of this step: the most of a loader that trains."""
        return max((count for loader, count in self._counts.items() if loader.trains), default=0)

    def drawn(self, iterator: Any, index: Any) -> None:
        """Note the index of a batch that the iterator will return later."""
        self._indices.setdefault(iterator, deque()).append(index)

    def batch(self, iterator: Any, batch: Any, is_checked: bool) -> None:
        """Note a batch that an iterator returned."""
        queue = self._indices.get(iterator)
        index = queue.popleft() if queue else None
        dataset = getattr(iterator, "_dataset", None)
        loader = self._loader(dataset)
        self._last = loader, weakref.ref(iterator)
        self._counts[loader] = self._counts.get(loader, 0) + 1
        if isinstance(index, list) and index and all(type(row) is int for row in index):
            loader.read(index, iterator)
        is_compared = is_stream(dataset) and self._rounds.waits(iterator)
        # Ranks may have datasets of their own, so it is not their numbers that make rows equal.
        rows = digests(batch) if is_checked or is_compared else []
        if is_compared:
            loader.read_stream(self._rounds.read(iterator, rows))
        if is_checked and (masks := _masks(batch)) is not None:
            self._has_masks = self._has_masks or masks
            self._unmasked += not masks
        if rows and is_checked:
            self._step.append((loader, rows[:MOST_ROWS]))
            if isinstance(index, list) and len(index) == len(rows):
                self._values.setdefault(loader, {}).update(zip(index, rows))

    def unmasked(self, setting: str) -> Alarm | None:
        """What is told if labels are to be masked by a setting, and those of no batch are."""
        if not setting or self._has_masks or self._unmasked < LEAST_UNMASKED:
            return None
        text = f"{setting} is set, and no label of {self._unmasked} batches is masked: all count"
        return Alarm("samples", "unmasked", text)

    def ended(self, iterator: Any) -> None:
        """Note that an iterator has no batch any more."""
        for loader in self.loaders:
            loader.ended(iterator)

    def _loader(self, dataset: Any) -> Loader:
        for loader in self.loaders:
            if loader.dataset() is dataset:
                return loader
        self.loaders = [one for one in self.loaders if one.dataset() is not None]
        self.loaders.append(Loader(dataset, self._count, self._goes_on))
        self._count += 1
        return self.loaders[-1]

    def backward(self) -> None:
        """Note that a backward begins: the last batch trains."""
        if self._last is not None:
            loader, iterator = self._last
            alarm = loader.trained(iterator(), self.numbers) if iterator() is not None else None
            self.alarms += [alarm] if alarm else []

    def stepped(self, optimizer: int) -> None:
        """Note that an optimizer has taken a step after the last batch."""
        if self._last is not None:
            self._last[0].stepped(optimizer)

    def of_step(self) -> list[tuple[int, list[int]]]:
        """The rows of this step, by the number of the loader, without those of an evaluation. If
        two loaders give some, all ranks may read all of a few rows, beside those that they split.
        """
        is_only_one = len({loader for loader, _ in self._step}) == 1
        return [(one.number, rows) for one, rows in self._step if one.trains and is_only_one]

    def samples(self) -> list[EpochSample]:
        """What epochs of datasets that the ranks split have given so far."""
        samples = [loader.sample(self._values.get(loader, {})) for loader in self.loaders]
        return [sample for sample in samples if sample is not None]

    def passes(self) -> list[Pass]:
        """What rank 0 is to learn of epochs that are over."""
        return [one for loader in self.loaders for one in loader.passes()]

    def orders(self) -> list[list[int]]:
        """The first batches of the last epoch of each loader."""
        return [order for loader in self.loaders if (order := loader.order())]

    def resumed_orders(self) -> list[list[int]]:
        """Those of the first epochs after a load."""
        return [order for loader in self.loaders if (order := loader.resumed_order())]

    def begun(self) -> list[Pass]:
        """The epochs that train now, of each loader, in their middle."""
        return [one for loader in self.loaders for one in loader.begun()]


def _masks(batch: Any) -> bool | None:
    """Whether labels of a batch are masked, beside those of padding; None if it has none here."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.device.type != "cpu":
        return None
    is_masked = labels == IGNORED
    attended = batch.get("attention_mask")
    if isinstance(attended, Tensor) and attended.shape == labels.shape:
        is_masked &= attended.bool()
    return bool(is_masked.any())


def digests(batch: Any) -> list[int]:
    """A number for each row of a batch, by its first tensors on the CPU; empty without any."""
    tensors = [one for one in islice(tensors_in(batch), MOST_TENSORS) if one.device.type == "cpu"]
    tensors = [one.detach() for one in tensors if one.dim() and not one.is_sparse]
    count = len(tensors[0]) if tensors else 0
    lists: list[list[Any]] = [[] for _ in range(count)]
    for tensor in tensors:
        if len(tensor) == count:
            flat = tensor.reshape(count, -1)
            flat = flat[:, :: max(1, flat.shape[1] // MOST_VALUES)]
            values = flat.double() if not flat.is_complex() else torch.view_as_real(flat).double()
            for row, part in zip(lists, values.tolist()):
                row.append(part)
    return [
        int.from_bytes(blake2b(repr(row).encode(), digest_size=7).digest(), "big") for row in lists
    ]
