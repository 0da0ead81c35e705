"""The rows of an epoch must come once, to one rank, in an order of their own.

Samplers, resumed loaders and streams that are split between ranks lose rows, or give the same ones
to several ranks, or in the same order in each epoch. The loss hardly shows it. This keeps a digest
of each row, and compares an epoch with the earlier ones, and with those of the other ranks.

    detector = Detector()
    detector.attach(None, None, loader)    # before the first batch, on every rank
    for epoch in range(1, epochs + 1):
        detector.epoch(epoch)
        for batch in loader:
            detector.batch(batch)
            ...
        print(detector.epoch_end(epoch))   # None, or an alarm

Ranks may all read the same rows, as with tensor parallelism. Rows that equal
each other are not told apart: where a rank sees many of them in an epoch, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.detectors.rows import checksum, have_same_order, leaves
from harness.detectors.steps import from_all

VALUES = 256
"""Values of a row that are looked at."""

APART = 0.9
"""The least share of different rows in an epoch with which rows are told apart."""

AHEAD = 2
"""Batches that a loader may have fetched before they are used."""

FILE = "rows.pt"

FEW = 4
"""Rows of an epoch with which an order says something."""


class Detector:
    """Compares the rows of each epoch that is read to its end."""

    def attach(
        self,
        model: Any,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._loader, self._group = loader, group
        self._earlier: tuple[str, ...] = ()
        self._rows: list[str] = []
        self._resumed: set[str] = set()
        self._batches = self._largest = 0

    def save(self, path: Any) -> None:
        begun = self._batches < _length(self._loader)
        torch.save(self._rows if begun else [], Path(path) / FILE)

    def load(self, path: Any) -> None:
        if (file := Path(path) / FILE).exists():
            self._resumed = set(torch.load(file))

    def epoch(self, number: int) -> None:
        self._rows, self._batches = [], 0

    def batch(self, batch: Any) -> None:
        rows = list(digests(batch))
        self._rows += rows
        self._largest = max(self._largest, len(rows))
        self._batches += 1

    def epoch_end(self, number: int) -> list[str]:
        alarms = [self._short(number), self._shared(), self._repeated(number), self._again()]
        return [alarm for alarm in alarms if alarm]

    def _again(self) -> str:
        """The rest of a resumed epoch must not repeat rows from before the save, except those that
        were fetched ahead."""
        again, self._resumed = self._resumed & set(self._rows), set()
        if len(set(self._rows)) < APART * len(self._rows) or len(again) <= AHEAD * self._largest:
            return ""
        return f"{len(again)} rows came before the save, and again in the rest of the epoch"

    def _short(self, number: int) -> str:
        """An epoch that has not begun in its middle must have all batches of the loader."""
        if not self._batches:
            return "the epoch has no batch"
        total = _length(self._loader)
        if number == 1 or not total or self._batches >= total:
            return ""
        return f"the epoch has {self._batches} batches, and the loader says {total}"

    def _shared(self) -> str:
        """Several ranks must not get the same rows, except those that fill up the last batches."""
        every = from_all((self._rows, self._largest), self._group)
        ranks = [set(rows) for rows, _ in every]
        largest = max(size for _, size in every)
        if any(len(set(rows)) < APART * len(rows) for rows, _ in every):
            return ""
        if any(rows == every[0][0] for rows, _ in every[1:]):
            return ""  # they are meant to see the same
        different = len(set().union(*ranks))
        shared = sum(map(len, ranks)) - different
        if shared <= largest * len(ranks):
            return ""
        return f"{shared} of {different} rows came to more than one rank in an epoch"

    def _repeated(self, number: int) -> str:
        rows = tuple(self._rows)
        least = max(FEW, APART * len(rows))
        if len(set(rows)) < least or not _shuffles(self._loader):
            return ""
        equal, self._earlier = have_same_order(rows, self._earlier, least), rows
        return f"epoch {number} has the rows in the order of the epoch before it" if equal else ""


def digests(batch: Any) -> Iterator[str]:
    """A digest of each row of a batch: of the tensors with the same first dimension as the first
    one, or of the elements of a list."""
    values = [leaf for _, leaf in leaves(batch, _has_attributes)]
    tensors = [leaf for leaf in values if isinstance(leaf, Tensor) and leaf.dim()]
    if not tensors:
        yield from (checksum(repr(leaf).encode()) for leaf in values)
        return
    count = len(tensors[0])
    parts = [_some(leaf) for leaf in tensors if len(leaf) == count]
    for row in range(count):
        yield checksum(b"".join(part[row].numpy().tobytes() for part in parts))


def _some(tensor: Tensor) -> Tensor:
    """Up to ``VALUES`` values of each row, as bytes."""
    flat = tensor.detach().reshape(len(tensor), -1)
    every = max(1, flat.shape[1] // VALUES)
    picked = flat[:, ::every].cpu().contiguous()
    return picked.view(torch.uint8) if picked.dtype != torch.bool else picked


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, Tensor)


def _length(loader: Any) -> int:
    """How many batches a loader says that it has; 0 if it does not say."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return 0


def _shuffles(loader: Any) -> bool:
    """Whether a loader shuffles: not one whose sampler goes through the rows in order, nor a stream
    that has no epochs."""
    samplers: list[Any] = list(_chain(loader))
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return hasattr(dataset, "set_epoch") and getattr(dataset, "shuffle", True) is not False
    in_order = any(isinstance(sampler, torch.utils.data.SequentialSampler) for sampler in samplers)
    return not (in_order or any(getattr(sampler, "shuffle", True) is False for sampler in samplers))


def _chain(loader: Any) -> Iterable[Any]:
    """The samplers of a loader, one within the other."""
    link = loader
    while True:
        inner = getattr(link, "batch_sampler", None)
        link = getattr(link, "sampler", None) if inner is None else inner
        if link is None:
            return
        yield link
