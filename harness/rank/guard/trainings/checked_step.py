"""What is looked at in a checked step: samples of gradients, weights and updates.

The first backward of the step arms: hooks on the parameters sample the gradients that this rank
computes. Before the first of clipping, unscaling and the optimizer's step, those that the optimizer
will use are sampled at the same positions. All samples stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from torch import Tensor

from ...training.parameters import Accumulation, Modules
from ..posting.budget import FIRST_CHECKS
from ..posting.posts import Post
from ..sampling.clips import Clips
from ..sampling.gradient_samples import GradientSamples
from ..sampling.samples import Positions, joined, largest
from ..sampling.update_samples import UpdateSamples
from .trained_model import TrainedModel

Guarded = Callable[[Callable[[Any], None]], Callable[[Any], None]]


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


class CheckedStep:
    """A step that is checked; the one before the first check has no parameter."""

    def __init__(self, model: TrainedModel, check: int) -> None:
        self._model, self.check = model, check
        self.numbers = model.numbers(check)
        """The parameters that this check looks at."""
        self.samples = GradientSamples(model.watched, self.numbers, check)
        self.backwards, self.clips, self.updates = Backwards(), Clips(), UpdateSamples()
        self.is_armed = False
        self._handles: list[Any] = []

    def arm(self, guarded: Guarded) -> None:
        """Begin to look. ``guarded`` makes a hook that never raises."""
        self.is_armed = True
        model, sums = self._model, self._model.sums
        assert sums is not None  # noqa: S101
        sums.begin_check(self.numbers, self.check <= FIRST_CHECKS and model.was_alone)
        self.samples.note_left(model.leftovers)
        for number in self.numbers:
            hooked = model.watched[number].hooked
            if hooked is not None and self.samples.positions[number].count:
                hook = guarded(partial(self.samples.add_computed, number))
                self._handles.append(Accumulation(hooked, hook))

    def disarm(self) -> None:
        """Remove all hooks."""
        self.is_armed = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def is_sampled(self) -> bool:
        """Whether the gradients that the optimizer uses in this step were sampled."""
        return self.is_armed and self.samples.used is not None

    def drop(self) -> None:
        """Note that the gradients so far were cleared: they are of this step."""
        self.backwards.drop(self.samples.computed)
        self.samples.forget_computed()

    def restart(self) -> None:
        """Forget what was noted: the gradients so far are of a step that was skipped."""
        self.clips, self.updates = Clips(), UpdateSamples()
        self.samples.forget()
        self.backwards.restart()

    @property
    def is_unreduced(self) -> bool:
        """Whether nothing reduces the gradients of this step, as far as wrappers say."""
        has_reduction = self.backwards.reduces and not self._model.has_no_wrapper
        return self.is_armed and not self._model.has_engine and not has_reduction

    def drops(self, batches: int, backwards: int) -> bool:
        """Whether gradients that were cleared in this step may be missing in it: each backward of
        it has a batch of its own. Others were for another end, as with SAM."""
        is_assembled = self.samples.facts.edited and not self._model.has_no_wrapper  # by the loop
        is_assembled = is_assembled and not self._model.has_engine
        return bool(self.backwards.dropped) and batches >= backwards and not is_assembled

    def describe(self, post: Post, batches: int, backwards: int) -> None:
        """Say in a post what was sampled in a step of so many batches and backwards."""
        samples, notes = self.samples, self.backwards
        is_drop = self.drops(batches, backwards)
        if is_drop and notes.dropped_sum is not None and samples.computed is not None:
            samples.computed = samples.computed + notes.dropped_sum
        watched, numbers = self._model.watched, self.numbers
        post.tensors.update(self._tensors())
        post.parameters.numbers = numbers if len(numbers) < len(watched) else []
        samples.describe(post)
        post.parameters.updates = self.updates.updates
        post.gradients.dropped = notes.dropped * is_drop
        post.losses.separate = notes.are_separate(batches)
        post.loop.unreduced = not notes.reduces
        post.loop.fused_scale = self.updates.has_fused_scale
        self._model.leftovers.note(watched, self._model.numbers(self.check + 1))

    def _tensors(self) -> dict[str, Tensor]:
        assert self._model.sums is not None  # noqa: S101
        weights = [self._model.watched[number].weight for number in self.numbers]
        values = [Positions.of(weight.numel()).values(weight) for weight in weights]
        tensors = {
            **self._model.sums.tensors(),
            **self.samples.tensors(),
            **self.updates.tensors(),
            **self.clips.tensors(),
            "weights": joined([sample for sample in values if len(sample)]),
            "weight_sizes": largest(weights),
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}
