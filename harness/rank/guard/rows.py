"""Which rows the loaders of this rank give: a hash of each batch, and rows of checked steps."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from .posts import LocalAlarm

FIRST_BATCHES = 4
"""The batches by which the order of two epochs is compared."""
MOST_ROWS = 512
"""Rows of a step that are compared with those of other ranks."""
MOST_VALUES = 128
"""Values of a row that make its digest."""


class Loader:
    """The order in which a dataset is read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = weakref.ref(dataset) if hasattr(dataset, "__weakref__") else lambda: dataset
        self.trains = False
        """Whether a backward followed one of its batches."""
        self._iterator: Any = lambda: None
        self._epoch = 0
        self._first: list[int] = []
        self._first_before: list[int] = []
        self._batches: set[int] = set()
        self._repeats = False
        """Whether a batch has a row twice: its sampler repeats, or draws with replacement."""
        self._told = False

    def read(self, rows: list[int], iterator: Any) -> LocalAlarm | None:
        """Note the indices of a batch."""
        batch = hash(tuple(rows))
        if self._iterator() is not iterator:
            self._iterator, self._epoch = weakref.ref(iterator), self._epoch + 1
            self._first_before, self._first, self._batches = self._first, [], set()
        alarm = None
        if len(self._first) < FIRST_BATCHES:
            self._first.append(batch)
            same = self._first == self._first_before
            if len(self._first) == FIRST_BATCHES and same and _shuffles(iterator):
                text = (
                    f"epoch {self._epoch} of a loader begins with the same rows in the same order "
                    "as the epoch before (set_epoch?)"
                )
                alarm = LocalAlarm("samples", "order", text)
        self._repeats = self._repeats or len(set(rows)) < len(rows)
        if batch in self._batches and len(set(rows)) > 1 and not self._repeats:
            shown = ", ".join(map(str, rows[:4]))
            text = f"the rows {shown}, ... came twice in epoch {self._epoch}"
            alarm = LocalAlarm("samples", "again", text)
        self._batches.add(batch)
        if self._told:
            return None
        self._told = alarm is not None
        return alarm


def _shuffles(iterator: Any) -> bool:
    sampler = getattr(iterator, "_index_sampler", None)
    while sampler is not None:
        if getattr(sampler, "shuffle", False) is True or type(sampler).__name__ == "RandomSampler":
            return True
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
    return False


class Rows:
    """The rows that this rank has read."""

    def __init__(self) -> None:
        self.loaders: list[Loader] = []
        self.alarms: list[LocalAlarm] = []
        self._indices: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._last: Loader | None = None
        self.begin()

    def begin(self) -> None:
        """Forget the rows of the last step."""
        self._step: list[tuple[int, list[int]]] = []

    def drawn(self, iterator: Any, index: Any) -> None:
        """Note the index of a batch that the iterator will return later."""
        self._indices.setdefault(iterator, deque()).append(index)

    def batch(self, iterator: Any, batch: Any, is_checked: bool) -> None:
        """Note a batch that an iterator returned."""
        queue = self._indices.get(iterator)
        index = queue.popleft() if queue else None
        loader = self._loader(getattr(iterator, "_dataset", None))
        self._last = loader
        if isinstance(index, list) and index and all(type(row) is int for row in index):
            alarm = loader.read(index, iterator)
            self.alarms += [alarm] if alarm else []
            rows: list[int] = index
        elif is_checked:
            rows = digests(batch)
        else:
            return
        if is_checked and rows:
            self._step.append((self.loaders.index(loader), rows[:MOST_ROWS]))

    def _loader(self, dataset: Any) -> Loader:
        for loader in self.loaders:
            if loader.dataset() is dataset:
                return loader
        self.loaders.append(Loader(dataset))
        return self.loaders[-1]

    def backward(self) -> None:
        """Note that a backward begins: the last batch trains."""
        if self._last is not None:
            self._last.trains = True

    def of_step(self) -> list[tuple[int, list[int]]]:
        """The rows of this step, by the number of the loader, without those of an evaluation."""
        return [(number, rows) for number, rows in self._step if self.loaders[number].trains]


def digests(batch: Any) -> list[int]:
    """A number for each row of the first tensor of a batch on the CPU; empty without one."""
    tensor = next(_tensors(batch), None)
    if tensor is None or tensor.device.type != "cpu" or not tensor.dim():
        return []
    flat = tensor.detach().reshape(len(tensor), -1)
    flat = flat[:, :: max(1, flat.shape[1] // MOST_VALUES)].double()
    return [
        int.from_bytes(blake2b(repr(row).encode(), digest_size=7).digest(), "big")
        for row in flat.tolist()
    ]


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    parts = batch.values() if hasattr(batch, "values") else batch
    for part in parts if isinstance(batch, (list, tuple)) or hasattr(batch, "values") else ():
        yield from _tensors(part)
