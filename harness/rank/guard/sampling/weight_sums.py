"""The bit sums of a training's weights: of all at first, and of those that a check looks at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...training.layouts import local
from ...training.parameters import Watched
from ..posting.posts import Post
from .samples import Positions, bit_sum, joined, stacked, version

MIX = 6364136223846793005
"""An odd number: two sums of bits with it in one are equal on two ranks if both sums are."""


class WeightSums:
    """The sums of the parameters of one training."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self.first = self._bits(range(len(watched)))
        self._last: Tensor | None = None
        """Those after the last checked step."""
        self._numbers: Sequence[int] = []
        """The parameters that this check looks at."""
        self._copied: list[int] = []
        """Those of them that are copies of what the optimizer steps."""
        self._begin: dict[int, Tensor] = {}
        """Their bit sums before the step."""
        self.unrounded: Tensor | None = None
        """By parameter, how many of its values are not those that the optimizer steps, rounded."""
        self.outside: Tensor | None = None
        """Whether weights changed between the last checked step and this one."""

    def begin_check(self, numbers: Sequence[int], looks_outside: bool) -> None:
        """Note what a check of the parameters ``numbers`` needs, and perhaps whether weights
        changed since the last one."""
        self.outside = None
        if self._last is not None and looks_outside:
            bits = self._bits(self._numbers)
            self.outside = (self._last != bits).any().long().reshape(1)
        self._numbers = numbers
        self._copied = [number for number in numbers if self._watched[number].share.master]
        self._begin = dict(zip(self._copied, self._sums(self._copied)))
        self.unrounded = self._differences()

    def end_wrapper_step(self) -> None:
        """Compare the weights again with what the optimizer steps: both have moved."""
        differences = self._differences()
        before, self.unrounded = self.unrounded, differences
        if before is not None and differences is not None:
            self.unrounded = before + differences

    def tensors(self) -> dict[str, Tensor | None]:
        """What a post has of the check that ends now."""
        bits = self.end_check()
        return {"bits": bits, "outside": self.outside, "unrounded": self.unrounded}

    def end_check(self) -> Tensor:
        """The bit sums after the step. A step overwrites weights that are copies of others, and so
        heals them: their sums have those before the step in them, too."""
        sums = dict(zip(self._numbers, self._sums(self._numbers)))
        for number, before in self._begin.items():
            sums[number] = sums[number] + MIX * before
        bits = stacked(list(sums.values()))
        self._last = None if self._copied else bits
        return bits

    def _differences(self) -> Tensor | None:
        """By parameter, how many values of the weight that this rank has are not those of the
        optimizer's copy, rounded; None if it has no copy on the device of a weight."""
        counts = []
        for number in self._numbers:
            master = self._watched[number].share.master
            if master is not None and master.tensor is not None:
                rounded, exact = master.rounded(), master.of(master.tensor)
                if rounded.device == exact.device and rounded.numel() == exact.numel():
                    is_apart = exact.to(rounded.dtype) != rounded
                    counts.append((number, (is_apart & (rounded == rounded)).sum()))
        if not counts:
            return None
        sums = dict(counts)
        none = torch.zeros_like(counts[0][1])
        return torch.stack([sums.get(number, none).to(none.device) for number in self._numbers])

    def _sums(self, numbers: Sequence[int]) -> list[Tensor]:
        return [bit_sum(self._watched[number].copy) for number in numbers]

    def _bits(self, numbers: Sequence[int]) -> Tensor:
        return stacked(self._sums(numbers))


LOOKED_AT = 16
"""Weights whose versions say whether a loop has moved weights: the last, and some before it."""


def versions(watched: Sequence[Watched]) -> list[int]:
    """How often some weights were written."""
    every = -(-len(watched) // LOOKED_AT) or 1
    return [version(local(one.parameter)) for one in watched[::-every]]


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

    def end_step(self, step: int, watched: Sequence[Watched]) -> None:
        """Note that a step has ended."""
        self._step, self._versions = step, versions(watched)

    def are_kept(self, watched: Sequence[Watched]) -> bool:
        """Whether nothing has written weights since the last step."""
        return self._versions == versions(watched)

    def note(self, watched: Sequence[Watched], sums: WeightSums) -> None:
        """Note the sums of the last step, if nothing has written weights since."""
        if self._noted == self._step or not self.are_kept(watched):
            return
        numbers = range(len(watched))
        sums.begin_check(numbers, looks_outside=False)
        weights = [one.weight for one in watched]
        samples = [Positions.of(weight.numel()).values(weight) for weight in weights]
        self._noted = self._step
        self._tensors = {
            "bits": sums.end_check(),
            "weights": joined([sample for sample in samples if len(sample)]),
        }

    def describe(self, post: Post) -> None:
        """Add the sums to the last post."""
        if self._tensors:
            post.step = self._noted
            post.tensors.update(self._tensors)
