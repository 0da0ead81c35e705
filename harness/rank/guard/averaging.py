"""Whether a loop averages weights between its steps, as local SGD does: then copies may differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..events import Collective, Subscription, instrument

REASON = "the loop itself averages the weights after some steps, as local SGD does"


class Averaging:
    """The collectives of the loop between a step and the next backward."""

    def __init__(self) -> None:
        self.reason = ""
        """Why copies may differ; empty without averages so far."""
        self._sizes: dict[int, int] = {}
        """By the number of values, how many such parameters there are."""
        self._total = self._values = 0
        self._is_between = False
        self._subscription: Subscription[Collective] | None = None

    def watch(self, parameters: Iterable[Any]) -> None:
        """Look at collectives from now on: the ranks of these parameters may train alone."""
        if self._subscription is None and not self.reason:
            sizes = [parameter.numel() for parameter in parameters]
            self._total, self._sizes = sum(sizes), {size: sizes.count(size) for size in set(sizes)}
            self._subscription = instrument.on(
                Collective, before=self._collective, when=lambda: self._is_between
            )

    def end(self) -> None:
        """Look at collectives no more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.end()
        self._is_between = False

    def step_ended(self) -> None:
        """A step of the optimizer has ended."""
        self._is_between, self._values = self._subscription is not None, 0

    def backward_begins(self) -> None:
        """A step begins to compute: what is reduced now are gradients."""
        self._is_between = False

    def _collective(self, event: Collective) -> None:
        for tensor in _tensors(event.values):
            if tensor.numel() in self._sizes or tensor.numel() == self._total:
                self._values += tensor.numel()
        if self._values >= self._total / 2 > 0:
            self.reason = REASON
            self.end()


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (one for one in value if isinstance(one, torch.Tensor))
