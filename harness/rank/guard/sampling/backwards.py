"""The backwards of a step, and gradients that were cleared between them."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from ...training.parameters import Modules
from ..posting.posts import Post


class Backwards:
    """Where the backwards of a step begin, and what of them the step does not use."""

    def __init__(self) -> None:
        self.dropped = 0
        """How often gradients were cleared before a step used them."""
        self.drops_parts = self._is_part = False
        """Whether a wrapper had been told to reduce the cleared gradients, or those of the last
        backward, later: in a step of which they are a part."""
        self.dropped_sum: Tensor | None = None
        """The gradients that were cleared before a step used them."""
        self._places: list[Hashable] = []
        self.reduces = False
        """Whether DDP reduces the gradients of a backward."""

    def begin(self, place: Hashable, modules: Modules | None) -> None:
        """Note that a backward begins at a place of the loop's code."""
        self.reduces = self.reduces or modules is None or modules.reduces()
        self._places.append(place)
        self._is_part = modules is not None and modules.reduces_later()

    def drop(self, computed: Tensor | None) -> None:
        """Note that what the backwards so far have computed was cleared."""
        self.dropped += 1
        self.drops_parts = self.drops_parts or self._is_part
        if computed is not None:
            before = self.dropped_sum
            self.dropped_sum = computed if before is None else before + computed
        self._places = []

    def restart(self) -> None:
        """Forget the backwards of a step that was skipped."""
        self._places, self._is_part = [], False

    def are_separate(self, batches: int) -> bool:
        """Whether the backwards of this step are those of several losses of the same rows, by their
        places in the code: they are no micro-batches."""
        places = self._places
        return batches < len(places) == len(set(places)) > 1


class BackwardCounts:
    """How many backwards the steps of a training have, its first and its last one, and how many
    batches are read for them."""

    def __init__(self, backwards: int) -> None:
        """``backwards`` ran in this process before, for other trainings."""
        self.first = self.last = 0
        self.equal_steps = 0
        """The steps in a row with as many as the last one."""
        self.batches = 0
        """The batches that were read for the last step."""
        self.is_whole = False
        """Whether the last step had as many backwards as the first, and several."""
        self.joined = 0
        """The steps before the last end of a ``join()``."""
        self.total = backwards
        """Those of this process that belong to no later step."""

    def end_step(self, backwards: int, batches: int, has_skipped: bool) -> None:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read. ``has_skipped`` says that a step before it was skipped."""
        before, self.last, self.batches = self.last, backwards - self.total, batches
        self.equal_steps = self.equal_steps + 1 if self.last == before else 1
        self.total = backwards
        if not self.first and not has_skipped:
            self.first = self.last
        self.is_whole = self.last == self.first > 1

    def describe(self, post: Post) -> None:
        """Say in a post what is known of the backwards of the last step."""
        post.losses.is_whole, post.losses.equal_steps = self.is_whole, self.equal_steps
        post.loop.joined = self.joined
