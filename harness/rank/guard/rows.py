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

from .posts import LocalAlarm

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

    def read(self, rows: list[int], iterator: Any) -> None:
        """Note the indices of a batch."""
        epoch = self._epochs.get(iterator)
        if epoch is None or epoch.is_over:
            self._count += 1
            epoch = self._epochs[iterator] = Epoch(self._count, _batches(iterator))
        self._last, self._again = epoch, None
        self._shuffles = _shuffles(iterator)
        batch = hash(tuple(rows))
        epoch.batches += 1
        epoch.rows += len(rows)
        if len(epoch.first) < FIRST_BATCHES:
            epoch.first.append(batch)
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
        if epoch is not None and len(epoch.first) == FIRST_BATCHES and not epoch.has_begun:
            epoch.has_begun = True
            before, self._before = self._before, epoch
            if before is not None and before.first == epoch.first and self._shuffles:
                alarm = alarm or _same_order(before, epoch)
        if self._told:
            return None
        self._told = alarm is not None
        return alarm


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
