"""A layer computes the same before and after PEFT merges its adapter into its weight.

It gets a few inputs in evaluation, before and after the merge alone. If the loop has changed the
adapter since the last step, it does not merge what was trained: then nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...events import MergedAdapter, instrument
from ..posting.posts import Alarm
from ..trainings.training import Training
from .subscriber import Subscriber

ROWS, SEED = 8, 0
UNEQUAL = 0.02
"""The part of an adapter's effect by which a right merge may be off, ..."""
ROUNDINGS = 32
"""... or so many roundings of the outputs: a layer of 16 inputs in bf16, merged rightly, stays
below in a test."""


class Merges(Subscriber):
    """The merges of a process."""

    def subscribe(self) -> None:
        """Subscribe to merges."""
        instrument.on(MergedAdapter, around=self._merge, when=self.fence.is_alive)

    def _merge(self, event: MergedAdapter, call: Callable[[], Any]) -> Any:
        if not event.has_all:
            return call()
        merge = Merge(event.owner)
        self.fence.call(merge.begin, self.trainings)
        value = call()
        self.fence.call(merge.end, lambda alarm: self.account.tell(self.trainings[0], alarm))
        return value


class Merge:
    """A merge of all adapters of a layer that are active."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._inputs = self._before = self._base = None

    def begin(self, trainings: Sequence[Training]) -> None:
        """Ask the layer with its adapter."""
        weights = {id(p) for p in self._layer.parameters() if p.requires_grad}
        models = (one.model for one in trainings)
        is_trained = any(one.holds(weights) and one.final.are_kept(one.watched) for one in models)
        if self._layer.merged_adapters or not is_trained:
            return
        base = self._layer.get_base_layer()
        self._inputs = _inputs(base)
        if self._inputs is not None:
            self._before, self._base = self._outputs(self._layer), self._outputs(base)

    def end(self, tell: Callable[[Alarm], None]) -> None:
        """Ask it again, and tell an alarm if it computes something else."""
        if self._before is None or self._base is None:
            return
        after = self._outputs(self._layer)
        error = float((after - self._before).abs().max())
        effect = float((self._before - self._base).abs().max())
        rounding = torch.finfo(after.dtype).eps * float(self._before.abs().max())
        if not error > max(UNEQUAL * effect, ROUNDINGS * rounding):
            return
        text = (
            f"an adapter was merged into a {type(self._layer).__name__}, which computes something "
            f"else since: off by {error / effect if effect else 1.0:.0%} of the adapter's effect"
        )
        tell(Alarm("checkpoints", "merge", text, size=error))

    def _outputs(self, layer: Any) -> Any:
        modes = [(module, module.training) for module in layer.modules()]
        try:
            for module, _ in modes:
                module.training = False  # no dropout draws a number
            with torch.no_grad():
                return layer.forward(self._inputs)
        finally:
            for module, mode in modes:
                module.training = mode


def _inputs(base: Any) -> Any:
    """A few inputs of a linear layer or an embedding that this rank has whole; None of others."""
    weight = getattr(base, "weight", None)
    if type(weight) is not torch.nn.Parameter or not weight.is_floating_point():
        return None
    if type(base) is torch.nn.Embedding:
        rows: Tensor = torch.arange(min(ROWS, base.num_embeddings), device=weight.device)
        return rows if weight.shape == (base.num_embeddings, base.embedding_dim) else None
    if type(base) is torch.nn.Linear and weight.shape == (base.out_features, base.in_features):
        generator = torch.Generator().manual_seed(SEED)
        rows = torch.randn(ROWS, base.in_features, generator=generator)
        return rows.to(weight.device, weight.dtype)
    return None
