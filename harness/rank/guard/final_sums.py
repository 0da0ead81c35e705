"""The sums of all weights, and of buffers, after the last step: the last check may be long ago."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ..training.layouts import local
from ..training.parameters import Modules, Watched
from .posts import Post
from .samples import Positions, bit_sum, joined, version
from .weight_sums import WeightSums, stacked

LOOKED_AT = 16
"""Weights whose versions say whether a loop has moved weights: first, last, and some between."""


def versions(watched: Sequence[Watched]) -> list[int]:
    """How often some weights were written."""
    places = {n * (len(watched) - 1) // (LOOKED_AT - 1) for n in range(LOOKED_AT)}
    return [version(local(watched[at].parameter)) for at in sorted(places) if watched]


class FinalSums:
    """What a training has after its last step, noted at its end or at a save.

    What the loop does to weights after that is its own: it may load the best ones, or merge
    adapters, on one rank alone.
    """

    def __init__(self) -> None:
        self._step = 0
        self._versions: list[int] = []
        self._noted = 0
        self._tensors: dict[str, Tensor] = {}
        self._buffers: list[str] = []

    def end_step(self, step: int, watched: Sequence[Watched]) -> None:
        """Note that a step has ended."""
        self._step, self._versions = step, versions(watched)

    def note(self, watched: Sequence[Watched], sums: WeightSums, modules: Modules) -> None:
        """Note the sums of the last step, if nothing has written weights since."""
        if self._noted == self._step or self._versions != versions(watched):
            return
        numbers = range(len(watched))
        sums.begin_check(numbers, self._step, looks_outside=False)
        weights = [one.weight for one in watched]
        samples = [Positions.of(weight.numel()).values(weight) for weight in weights]
        buffers = dict(_buffers(modules))
        self._noted, self._buffers = self._step, list(buffers)
        self._tensors = {
            "bits": sums.end_check(),
            "weights": joined([sample for sample in samples if len(sample)]),
            "buffers": stacked([bit_sum(buffer) for buffer in buffers.values()]),
        }

    def describe(self, post: Post) -> None:
        """Add the sums to the last post."""
        if self._tensors:
            post.step, post.buffers = self._noted, self._buffers
            post.tensors.update(self._tensors)


def _buffers(modules: Modules) -> Iterator[tuple[str, Any]]:
    """The buffers of the modules of this process, without those of batch norm, which differ between
    ranks on purpose until the next forward."""
    for root in modules.roots:
        for name, module in root.named_modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                continue
            for buffer_name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point() and buffer.numel() and not buffer.is_meta:
                    yield f"{name}.{buffer_name} ({type(module).__name__})", local(buffer)
