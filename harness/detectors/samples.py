"""No row may come twice before every row came once, on whichever rank.

Ranks that shuffle differently, a sampler that begins again, or a resume that skips nothing leave a
training that looks healthy. Rows are recognised by their content.

    detector = Detector()
    detector.attach(model, optimizer, loader)   # before the first forward pass, on every rank
    print(detector.step(number))                # after each step: None, or an alarm

Ranks that are given the same rows on purpose, as under tensor parallelism, count as one. A dataset
may have equal rows, so most rows of a step must come again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.sampling import from_all


class Detector:
    """Counts the rows that a model is given while it is trained."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group, self._rows = group, list[str]()
        self._seen: Counter[str] = Counter()
        self._size = _size(loader)
        model.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, module: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and module.training:
            self._rows += _digests([*arguments, *named.values()], named.get("input_ids"))

    def step(self, number: int) -> str | None:
        every = from_all(self._rows, self._group)
        self._rows = []
        if all(rows == every[0] for rows in every[1:]):
            every = every[:1]
        rows = [row for rows in every for row in rows]
        twice = [row for row, count in Counter(rows).items() if count > 1]
        if self._size is None or self._size < len(rows):
            return None
        if len(every) > 1 and 2 * len(twice) > len(rows) / len(every):
            return f"{len(twice)} of {len(rows)} rows of this step came twice"
        again = sum(row in self._seen for row in rows)
        left = self._size - len(self._seen)
        self._seen.update(rows)
        if 2 * again > len(rows) and left > len(rows):
            return f"{again} of {len(rows)} rows came before, and {left} did not come yet"
        if len(self._seen) >= self._size or left <= len(rows):
            self._seen.clear()
            self._seen.update(rows[-again:] if again else [])
        return None

    def save(self, path: Path) -> None:
        torch.save(dict(self._seen), Path(path) / "rows.pt")

    def load(self, path: Path) -> None:
        if (file := Path(path) / "rows.pt").exists():
            self._seen = Counter(torch.load(file))


def _size(loader: Any) -> int | None:
    """The rows of the loader's dataset; None if it does not know them."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None


def _digests(values: list[Any], ids: Any) -> Iterator[str]:
    """A digest of each row of the tensor with the most numbers in a row, or of ``input_ids``."""
    tensors = [ids] if isinstance(ids, Tensor) else list(_tensors(values))
    if not tensors:
        return
    rows = max(tensors, key=lambda t: t[0].numel() if len(t) else 0)
    for row in rows.detach().cpu():
        content = row.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        yield hashlib.md5(content, usedforsecurity=False).hexdigest()[:12]


def _tensors(values: list[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and value.dim() and not hasattr(value, "to_local"):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(list(value.values()))
        elif isinstance(value, (list, tuple)):
            yield from _tensors(list(value))
