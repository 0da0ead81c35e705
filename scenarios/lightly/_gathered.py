"""lightly's losses over the rows of several ranks, and the same in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OfViews:
    """A loss of two views as one of the oracle's outputs."""

    loss: Any

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = self.loss(*outputs.unbind(1))
        return found
