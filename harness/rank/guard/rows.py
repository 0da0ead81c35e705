"""Which rows the loaders of this rank give: a hash of each batch, and rows of checked steps."""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .posts import EpochSample, LocalAlarm
from .splits import EpochRows, sample_of_step, splits

FIRST_BATCHES = 4
"""The batches by which the order of two epochs is compared."""
MOST_ROWS = 512
"""Rows of a step that are compared with those of other ranks."""
MOST_TENSORS, MOST_VALUES = 4, 128
"""Tensors, and values of each, that make the digest of a row."""
MOST_BATCHES = 1 << 16
"""Batches of an epoch that are remembered."""
CHANCE = 1e-4
"""A sampler that draws with replacement gives a batch again so seldom that it is a fault."""
LEAST_ORDERS = math.log(1e7)
"""The logarithm of how many orders the rows of an epoch have at least, if they are compared."""


class Epoch:
    """A pass of an iterator over its rows."""

    def __init__(self, number: int, length: int | None) -> None:
        self.number, self.length = number, length
        self.batches = self.rows = 0
        self.first: list[int] = []
        self.has_begun = False
        """Whether its first batches trained."""
        self.seen: set[int] = set()
        self.part: EpochRows | None = None
        """The rows, if ranks split the dataset."""
        self.training = 0
        """Which of the epochs that train it is; 0 if it does not."""

    @property
    def is_over(self) -> bool:
        """Whether all its batches were read: an iterator may go on with another epoch."""
        return self.length is not None and self.batches >= self.length


class Loader:
    """The order in which a dataset is read."""

    def __init__(self, dataset: Any, number: int) -> None:
        self.dataset = weakref.ref(dataset) if hasattr(dataset, "__weakref__") else lambda: dataset
        self.number = number
        self.trains = False
        """Whether a backward followed one of its batches."""
        self._epochs: weakref.WeakKeyDictionary[Any, Epoch] = weakref.WeakKeyDictionary()
        self._count = 0
        self._last: Epoch | None = None
        """The epoch of the last batch."""
        self._before: Epoch | None = None
        """The epoch that trained before this one."""
        self._repeats = False
        """Whether a batch has a row twice: its sampler repeats, or draws with replacement."""
        self._again: LocalAlarm | None = None
        self._shuffles = self._told = False
        self._trained: Epoch | None = None
        """The last epoch that trained."""
        self._surprise = 0.0
        """How improbable it is by chance that no row came twice in the epochs before it."""
        self._splits = True
        """Whether no epoch so far says that ranks do not split the dataset."""

    def read(self, rows: list[int], iterator: Any) -> None:
        """Note the indices of a batch."""
        epoch = self._epochs.get(iterator)
        if epoch is None or epoch.is_over:
            self._count += 1
            epoch = self._epochs[iterator] = Epoch(self._count, _batches(iterator))
            size = splits(iterator, self.dataset())
            epoch.part = EpochRows(size) if size else None
        self._last, self._again = epoch, None
        self._shuffles = _shuffles(iterator)
        batch = hash(tuple(rows))
        epoch.batches += 1
        epoch.rows += len(rows)
        if len(epoch.first) < FIRST_BATCHES:
            epoch.first.append(batch)
        if epoch.part is not None and not epoch.is_over:
            epoch.part.add(rows)
        if epoch.length is not None and getattr(iterator, "_num_yielded", 0) > epoch.length:
            self._splits = False  # it goes on after its end, so nobody knows where an epoch begins
        self._repeats = self._repeats or len(set(rows)) < len(rows) or _draws_again(iterator)
        within = epoch.length is not None or epoch.rows <= _rows_of_rank(self.dataset())
        if batch in epoch.seen and within and not self._repeats and _is_no_chance(epoch, len(rows)):
            row_list = ", ".join(map(str, rows[:4]))
            text = f"the rows {row_list}, ... came twice in epoch {epoch.number}"
            self._again = LocalAlarm("samples", "again", text)
        if len(epoch.seen) < MOST_BATCHES:
            epoch.seen.add(batch)

    def trained(self) -> LocalAlarm | None:
        """Note that a backward begins with the last batch: an evaluation may read as it likes."""
        self.trains = True
        epoch, alarm, self._again = self._last, self._again, None
        if epoch is not None and not epoch.training:
            self._begin_training(epoch)
        if epoch is not None and len(epoch.first) == FIRST_BATCHES and not epoch.has_begun:
            epoch.has_begun = True
            before, self._before = self._before, epoch
            if before is not None and before.first == epoch.first and self._shuffles:
                alarm = alarm or _same_order(before, epoch)
        if self._told:
            return None
        self._told = alarm is not None
        return alarm

    def _begin_training(self, epoch: Epoch) -> None:
        before = self._trained
        epoch.training = before.training + 1 if before else 1
        if before is not None and before.part is not None:
            self._surprise += before.part.surprise
            self._splits = self._splits and not before.part.repeats
        self._trained = epoch

    def sample(self, step: dict[int, int]) -> EpochSample | None:
        """What this epoch has given so far, and the values of rows of this step by their numbers;
        None if nothing says that ranks split the dataset."""
        epoch = self._trained
        if epoch is None or epoch.part is None or epoch.part.repeats or self._repeats:
            return None
        if not self._splits:
            return None
        surprise = self._surprise + epoch.part.surprise
        rows = sorted(epoch.part.sample)
        return EpochSample(self.number, epoch.training, surprise, rows, sample_of_step(step))


def _same_order(before: Epoch, epoch: Epoch) -> LocalAlarm | None:
    if math.lgamma(max(before.rows, epoch.rows) + 1) < LEAST_ORDERS:
        return None  # so few rows have this order again by chance
    text = (
        f"epoch {epoch.number} of a loader begins with the same rows in the same order "
        "as the epoch before (set_epoch?)"
    )
    return LocalAlarm("samples", "order", text)


def _is_no_chance(epoch: Epoch, rows: int) -> bool:
    """Whether a sampler that draws from all rows hardly gives this batch again: so many rows were
    different ones."""
    return epoch.batches**2 / 2 < CHANCE * float(max(2, epoch.rows - rows)) ** rows


def _batches(iterator: Any) -> int | None:
    """The batches of an epoch; None if nobody says."""
    try:
        return len(iterator._index_sampler)
    except Exception:  # a stranger's code
        return None


def _rows_of_rank(dataset: Any) -> float:
    try:
        return len(dataset) / int(os.environ.get("WORLD_SIZE") or 1)
    except Exception:  # a stranger's code
        return 0.0


def _samplers(iterator: Any) -> Iterator[Any]:
    sampler = getattr(iterator, "_index_sampler", None)
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)


def _draws_again(iterator: Any) -> bool:
    return any(getattr(one, "replacement", False) is True for one in _samplers(iterator))


def _shuffles(iterator: Any) -> bool:
    return any(
        getattr(one, "shuffle", False) is True or type(one).__name__ == "RandomSampler"
        for one in _samplers(iterator)
    )


class Rows:
    """The rows that this rank has read."""

    def __init__(self) -> None:
        self.loaders: list[Loader] = []
        self.alarms: list[LocalAlarm] = []
        self._count = 0
        self._indices: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._last: Loader | None = None
        self.begin()

    def begin(self) -> None:
        """Forget the rows of the last step."""
        self._step: list[tuple[Loader, list[int]]] = []
        self._counts: dict[Loader, int] = {}
        self._values: dict[Loader, dict[int, int]] = {}
        """By the numbers of rows, their digests."""

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
        loader = self._last = self._loader(getattr(iterator, "_dataset", None))
        self._counts[loader] = self._counts.get(loader, 0) + 1
        if isinstance(index, list) and index and all(type(row) is int for row in index):
            loader.read(index, iterator)
        # Ranks may have datasets of their own, so it is not their numbers that make rows equal.
        rows = digests(batch) if is_checked else []
        if rows:
            self._step.append((loader, rows[:MOST_ROWS]))
            if isinstance(index, list) and len(index) == len(rows):
                self._values.setdefault(loader, {}).update(zip(index, rows))

    def _loader(self, dataset: Any) -> Loader:
        for loader in self.loaders:
            if loader.dataset() is dataset:
                return loader
        self.loaders = [one for one in self.loaders if one.dataset() is not None]
        self.loaders.append(Loader(dataset, self._count))
        self._count += 1
        return self.loaders[-1]

    def backward(self) -> None:
        """Note that a backward begins: the last batch trains."""
        alarm = self._last.trained() if self._last is not None else None
        self.alarms += [alarm] if alarm else []

    def of_step(self) -> list[tuple[int, list[int]]]:
        """The rows of this step, by the number of the loader, without those of an evaluation."""
        return [(loader.number, rows) for loader, rows in self._step if loader.trains]

    def samples(self) -> list[EpochSample]:
        """What epochs of datasets that the ranks split have given so far."""
        samples = [loader.sample(self._values.get(loader, {})) for loader in self.loaders]
        return [sample for sample in samples if sample is not None]


def digests(batch: Any) -> list[int]:
    """A number for each row of a batch, by its first tensors on the CPU; empty without any."""
    tensors = [one for one in islice(_tensors(batch), MOST_TENSORS) if one.device.type == "cpu"]
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


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    parts = batch.values() if hasattr(batch, "values") else batch
    for part in parts if isinstance(batch, (list, tuple)) or hasattr(batch, "values") else ():
        yield from _tensors(part)
